//! Scores a model's translations: BLEU over pairs, and some translations to read.

use super::translation_score::{TranslationSettings, Translations};
use crate::data::{Dataset, TextPairs};
use crate::inference::bleu::bleu;
use crate::inference::translate::Translator;
use crate::BossMan;
use crate::BossManError;

/// Texts that go through the model together.
const BATCH_SIZE: usize = 32;

impl Translations {
    /// Translates the pairs that are the samples of `data`.
    ///
    /// # Errors
    /// The errors of [`Translator`], and those of the file.
    pub async fn of(
        boss: &mut BossMan,
        texts: &TextPairs,
        data: &Dataset,
        how: &TranslationSettings,
    ) -> Result<Self, BossManError> {
        let translator = Translator::new(boss.model(), texts)?;
        let wanted: Vec<Option<i64>> = (0..data.samples().min(how.pairs))
            .map(|number| data.number(number.cast_signed()))
            .collect();
        let last = wanted.iter().flatten().max().copied().unwrap_or(0);
        let all = texts.texts(last.unsigned_abs() + 1)?;
        let lost = || BossManError::file(&texts.path, "has fewer pairs than when it was opened");
        let pairs = wanted.into_iter().map(|number| all.get(usize::try_from(number?).ok()?));
        let pairs: Vec<&[String; 2]> = pairs.collect::<Option<_>>().ok_or_else(lost)?;
        // Texts of about one length go together, so that little is padding.
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by_key(|place| pairs[*place][0].len());
        let mut translations = vec![String::new(); pairs.len()];
        for places in order.chunks(BATCH_SIZE) {
            let sources: Vec<&str> = places.iter().map(|place| pairs[*place][0].as_str()).collect();
            let found = translator.translate(boss, &sources, &how.search).await?;
            for (place, translation) in places.iter().zip(found) {
                translations[*place] = translation;
            }
        }
        let references: Vec<&str> = pairs.iter().map(|pair| pair[1].as_str()).collect();
        let bleu = bleu(&translations, &references);
        let shown = usize::try_from(how.samples).unwrap_or(usize::MAX);
        let samples = pairs.iter().zip(&translations).take(shown);
        let samples = samples
            .map(|([text, reference], t)| [text.clone(), reference.clone(), t.clone()])
            .collect();
        Ok(Translations { bleu, pairs: pairs.len(), samples })
    }
}
