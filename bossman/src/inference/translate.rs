//! Translates texts with an encoder and a decoder: greedily, or by beam search.

use crate::data::{LoadedTokenizer, Role, TextPairs};
use crate::inference::generate::{last_logits, last_position};
use crate::inference::sampling::non_finite_logits;
use crate::inference::search::Search;
use crate::{BossMan, BossManError, Model};
use layerspec::{Dim, LayerId};
use pipeline::kv_cache_step::KvCacheStep;
use tch::{Device, Kind, Tensor};
use tensor::TensorError;

/// A model of pairs at work. Workers cache the keys and values of the tokens so far, and the
/// encoder's outputs.
pub struct Translator {
    source: LoadedTokenizer,
    target: Option<LoadedTokenizer>,
    /// The special tokens: begin and end of a translation, end and padding of a source.
    bos: u32,
    eos: u32,
    source_eos: u32,
    source_pad: u32,
    /// The source of each of the model's inputs.
    roles: Vec<Role>,
    /// The layers that continue with each token, or the reason why some layer cannot.
    cached_layers: Result<Vec<LayerId>, String>,
    max_positions: usize,
}

impl Translator {
    /// A translator for a model whose inputs are those of [`TextPairs`].
    ///
    /// # Errors
    /// An input of the model is not one of [`TextPairs`], the model has a fixed length of
    /// sequences, or a tokenizer cannot be read.
    pub fn new(model: &Model, texts: &TextPairs) -> Result<Self, BossManError> {
        let graph = model.graph();
        for id in graph.inputs() {
            if let Some(Dim::Fixed(rows)) = graph.value(*id).ty.dims().first() {
                let name = &graph.value(*id).name;
                let problem = format!(
                    "translating needs a model that takes batches of any size: `{name}` has \
                     {rows} rows; write a word as `batch` in the model"
                );
                return Err(BossManError::Usage(problem));
            }
            if let Some(Dim::Fixed(size)) = graph.value(*id).ty.dims().get(1) {
                let name = &graph.value(*id).name;
                let problem = format!(
                    "translating needs a model that takes sequences of any length: `{name}` has \
                     {size} positions; give their number a name in the model"
                );
                return Err(BossManError::Usage(problem));
            }
        }
        let names = graph.inputs().iter().map(|id| graph.value(*id).name.as_str());
        let roles = names.map(|name| texts.role(name)).collect::<Result<Vec<_>, _>>()?;
        let grows = |role: &Role| matches!(role, Role::Target | Role::TargetPadding);
        let grown =
            graph.inputs().iter().zip(&roles).filter(|(_, role)| grows(role)).map(|(id, _)| *id);
        let cached_layers =
            graph.incremental(&grown.collect::<Vec<_>>()).map_err(|needs| needs.to_string());
        let source = LoadedTokenizer::load(&texts.tokenizer)?;
        let target = texts.target_tokenizer.as_ref().map(LoadedTokenizer::load).transpose()?;
        let [bos, eos, pad] = &texts.special_tokens;
        let into = target.as_ref().unwrap_or(&source);
        let (bos, last) = (into.special_token("bos", bos)?, into.special_token("eos", eos)?);
        let (source_eos, source_pad) =
            (source.special_token("eos", eos)?, source.special_token("pad", pad)?);
        let most = [texts.max_length, graph.max_positions()].into_iter().flatten().min();
        let most = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        Ok(Translator {
            source,
            target,
            bos,
            eos: last,
            source_eos,
            source_pad,
            roles,
            cached_layers,
            max_positions: most,
        })
    }

    /// The reason why the whole sequence goes through the stages for every token, if it does.
    pub fn why_not_incremental(&self) -> Option<&str> {
        self.cached_layers.as_ref().err().map(String::as_str)
    }

    /// The number of tokens at the end of a text that the model does not see, because it has fewer
    /// positions.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn unseen_tokens(&self, text: &str) -> Result<usize, BossManError> {
        let mut tokens = Vec::new();
        self.source.encode(text, &mut tokens)?;
        Ok(tokens.len().saturating_sub(self.max_positions.saturating_sub(1)))
    }

    /// Translates texts in one batch.
    ///
    /// # Errors
    /// A worker failed, or the model's output does not have a logit for each token and position.
    pub async fn translate(
        &self,
        boss: &mut BossMan,
        texts: &[impl AsRef<str>],
        search: &Search,
    ) -> Result<Vec<String>, BossManError> {
        search.check()?;
        let longest = search.max_length.min(self.max_positions as u64);
        let mut sentences = Vec::with_capacity(texts.len());
        for (number, text) in texts.iter().enumerate() {
            let mut tokens = Vec::new();
            self.source.encode(text.as_ref(), &mut tokens)?;
            tokens.truncate(self.max_positions.saturating_sub(1));
            tokens.push(self.source_eos);
            let beams = vec![Beam { tokens: vec![self.bos], score: 0.0, row: 0 }];
            sentences.push(Sentence { number, source: tokens, beams, finished: Vec::new() });
        }
        // The width stays the same when some texts are done, because the workers cache the
        // encoder's outputs for the padding, too.
        let width = sentences.iter().map(|sentence| sentence.source.len()).max().unwrap_or(0);
        let mut found = vec![Vec::new(); texts.len()];
        let mut length = 0;
        while !sentences.is_empty() {
            let logits = self.step(boss, &sentences, width, length == 0).await?;
            length += 1;
            let mut row = 0;
            for sentence in &mut sentences {
                let rows = sentence.beams.len() as i64;
                sentence.advance(
                    &logits.f_narrow(0, row, rows).map_err(TensorError::from)?,
                    row,
                    self.eos,
                    search,
                )?;
                row += rows;
            }
            let over = length >= longest;
            sentences.retain_mut(|sentence| match sentence.best(search, over) {
                Some(best) => {
                    found[sentence.number] = best;
                    false
                }
                None => true,
            });
        }
        let into = self.target.as_ref().unwrap_or(&self.source);
        found.iter().map(|tokens| Ok(into.decode(tokens)?)).collect()
    }

    /// The log probabilities of the next token, `[beams of all sentences, vocabulary]`.
    async fn step(
        &self,
        boss: &mut BossMan,
        sentences: &[Sentence],
        width: usize,
        first: bool,
    ) -> Result<Tensor, BossManError> {
        let beams: Vec<&Beam> = sentences.iter().flat_map(|sentence| &sentence.beams).collect();
        let past = beams.first().map_or(0, |beam| beam.tokens.len() - 1);
        let (from, cached) = match &self.cached_layers {
            Ok(layers) => {
                let rows =
                    if first { Vec::new() } else { beams.iter().map(|beam| beam.row).collect() };
                (past, Some(KvCacheStep { past: past as u64, rows, layers: layers.clone() }))
            }
            Err(_) => (0, None),
        };
        let positions = past + 1 - from;
        let sources =
            || sentences.iter().flat_map(|s| std::iter::repeat_n(&s.source, s.beams.len()));
        let inputs = self.roles.iter().map(|role| match role {
            Role::Source => token_tensor(sources().map(|tokens| {
                let tokens = tokens.iter().map(|token| i64::from(*token));
                tokens.chain(std::iter::repeat(i64::from(self.source_pad))).take(width)
            })),
            Role::SourcePadding => {
                let padding =
                    sources().map(|tokens| (0..width).map(|at| i64::from(at >= tokens.len())));
                Ok(token_tensor(padding)?.f_to_kind(Kind::Bool)?)
            }
            Role::Target | Role::Labels => token_tensor(
                beams.iter().map(|beam| beam.tokens[from..].iter().map(|token| i64::from(*token))),
            ),
            Role::TargetPadding => Ok(Tensor::f_zeros(
                [beams.len() as i64, positions as i64],
                (Kind::Bool, Device::Cpu),
            )?),
        });
        let inputs = inputs.collect::<Result<Vec<_>, TensorError>>()?;
        let last = last_position(positions, boss.trainer.loss.as_ref());
        let output = boss.trainer.forward_cached(&inputs, cached, last).await?;
        let logits = last_logits(&output, last)?;
        Ok(logits.f_log_softmax(-1, Kind::Double).map_err(TensorError::from)?)
    }
}

fn token_tensor(
    rows: impl Iterator<Item = impl Iterator<Item = i64>>,
) -> Result<Tensor, TensorError> {
    let (mut numbers, mut count) = (Vec::new(), 0i64);
    for row in rows {
        numbers.extend(row);
        count += 1;
    }
    Ok(Tensor::f_from_slice(&numbers)?.f_view([count, -1])?)
}

/// A text that is being translated.
struct Sentence {
    number: usize,
    source: Vec<u32>,
    beams: Vec<Beam>,
    /// Translations that ended, with their scores.
    finished: Vec<(f64, Vec<u32>)>,
}

/// An unfinished translation.
struct Beam {
    /// The begin token, and the tokens so far.
    tokens: Vec<u32>,
    /// Its log probability.
    score: f64,
    /// The row of the previous pass from which it continues.
    row: u32,
}

impl Beam {
    fn normalized_score(&self, search: &Search) -> f64 {
        search.normalized(self.score, self.tokens.len() - 1)
    }
}

impl Sentence {
    /// Continues with the log probabilities of the next tokens of its beams. `first` is the row of
    /// the first beam.
    fn advance(
        &mut self,
        logs: &Tensor,
        first: i64,
        eos: u32,
        search: &Search,
    ) -> Result<(), TensorError> {
        let scores: Vec<f64> = self.beams.iter().map(|beam| beam.score).collect();
        let all = logs.f_add(&Tensor::f_from_slice(&scores)?.f_unsqueeze(1)?)?;
        let vocabulary = logs.size().get(1).copied().unwrap_or(1).max(1);
        let wide = search.beams as usize;
        // Enough candidates if all others end.
        let (best, places) = all.f_flatten(0, -1)?.f_topk(
            (2 * wide as i64).min(all.numel() as i64),
            0,
            true,
            true,
        )?;
        let (best, places) = (Vec::<f64>::try_from(best)?, Vec::<i64>::try_from(places)?);
        if best.first().is_some_and(|score| score.is_nan()) {
            return Err(non_finite_logits());
        }
        let mut beams = Vec::new();
        for (rank, (score, place)) in best.into_iter().zip(places).enumerate() {
            let (beam, token) = (place / vocabulary, (place % vocabulary) as u32);
            let from = &self.beams[beam as usize];
            if token == eos {
                if rank < wide {
                    let score = search.normalized(score, from.tokens.len());
                    self.finished.push((score, from.tokens[1..].to_vec()));
                }
            } else if beams.len() < wide {
                let tokens = from.tokens.iter().copied().chain([token]).collect();
                beams.push(Beam { tokens, score, row: (first + beam) as u32 });
            }
        }
        self.beams = beams;
        Ok(())
    }

    /// The best translation, if it is found. With `now`, the best one so far, ended or not.
    fn best(&mut self, search: &Search, now: bool) -> Option<Vec<u32>> {
        if now {
            for beam in std::mem::take(&mut self.beams) {
                self.finished.push((beam.normalized_score(search), beam.tokens[1..].to_vec()));
            }
        } else if self.may_improve(search) {
            return None;
        }
        let finished = std::mem::take(&mut self.finished).into_iter();
        let best = finished.reduce(|best, other| if other.0 > best.0 { other } else { best });
        Some(best.map(|(_, tokens)| tokens).unwrap_or_default())
    }

    /// Whether an unfinished translation is better than the worst of the best ones that ended, or
    /// fewer than the beams have ended. This is the rule of transformers (`early_stopping: false`).
    fn may_improve(&mut self, search: &Search) -> bool {
        let Some(running) = self.beams.first() else { return false };
        self.finished.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let worst = self.finished.get(search.beams as usize - 1);
        worst.is_none_or(|(worst, _)| running.normalized_score(search) > *worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Continues with log probabilities over the tokens 0, 1 and 2 (the end).
    fn advance(sentence: &mut Sentence, logs: &[[f64; 3]], search: &Search) {
        let rows: Vec<f64> = logs.iter().flatten().map(|p| p.ln()).collect();
        let logs = Tensor::from_slice(&rows).view([logs.len() as i64, 3]);
        sentence.advance(&logs, 0, 2, search).unwrap();
    }

    fn sentence() -> Sentence {
        let beams = vec![Beam { tokens: vec![9], score: 0.0, row: 0 }];
        Sentence { number: 0, source: Vec::new(), beams, finished: Vec::new() }
    }

    #[test]
    fn beams_find_what_greed_does_not() {
        // The likeliest first token leads to less likely ends.
        let greedy = Search { beams: 1, length_penalty: 0.0, max_length: 9 };
        let mut one = sentence();
        advance(&mut one, &[[0.6, 0.4, 0.0]], &greedy);
        advance(&mut one, &[[0.3, 0.3, 0.4]], &greedy);
        assert_eq!(one.best(&greedy, false), Some(vec![0]));

        let wide = Search { beams: 2, ..greedy };
        let mut two = sentence();
        advance(&mut two, &[[0.6, 0.4, 0.0]], &wide);
        assert_eq!(two.beams.len(), 2);
        advance(&mut two, &[[0.3, 0.3, 0.4], [0.0, 0.1, 0.9]], &wide);
        assert_eq!(two.best(&wide, false), Some(vec![1]));
    }

    #[test]
    fn a_better_translation_is_not_given_up_for_short_ones() {
        let search = Search { beams: 2, length_penalty: 0.0, max_length: 9 };
        let mut one = sentence();
        advance(&mut one, &[[0.9, 0.04, 0.06]], &search);
        advance(&mut one, &[[0.9, 0.0, 0.1], [0.0, 0.0, 1.0]], &search);
        assert_eq!(one.finished.len(), 2, "two have ended");
        assert_eq!(one.best(&search, false), None, "but one that goes on is better");
        advance(&mut one, &[[0.0, 0.0, 1.0]], &search);
        assert_eq!(one.best(&search, false), Some(vec![0, 0]));
    }

    #[test]
    fn a_translation_that_is_too_long_is_cut_rather_than_exchanged_for_a_bad_one() {
        let search = Search { beams: 2, length_penalty: 0.0, max_length: 2 };
        let mut one = sentence();
        advance(&mut one, &[[0.9, 0.04, 0.06]], &search);
        advance(&mut one, &[[0.98, 0.0, 0.02], [1.0, 0.0, 0.0]], &search);
        assert_eq!(one.best(&search, true), Some(vec![0, 0]));
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        let logs = Tensor::from_slice(&[-1.0, f64::NAN, -2.0]).view([1, 3]);
        for beams in [1, 3] {
            let error = sentence()
                .advance(&logs, 0, 2, &Search { beams, ..Search::default() })
                .unwrap_err()
                .to_string();
            assert!(error.contains("gave logits that are no numbers"), "{error}");
        }
    }

    #[test]
    fn a_translation_that_does_not_end_is_cut() {
        let search = Search { beams: 2, length_penalty: 0.6, max_length: 2 };
        let mut endless = sentence();
        advance(&mut endless, &[[0.9, 0.1, 0.0]], &search);
        assert_eq!(endless.best(&search, false), None);
        assert_eq!(endless.beams[0].tokens, [9, 0]);
        assert_eq!(endless.best(&search, true), Some(vec![0]));
    }
}
