//! RoBERTa: an encoder whose positions are counted from the padding token, and the classifier of
//! its first position.

use super::encoder::{encoder, leftovers, Encoder, Kind};
use super::labels::labels;
use super::parts::{dropout, linear};
use crate::import::family::{Family, FamilyModel, Output, Request};
use crate::import::model_text::{var, LayerText};
use crate::BossManError;

pub(in crate::import) const ROBERTA: Family = Family {
    architectures: &["RobertaForSequenceClassification", "RobertaModel", "RobertaForMaskedLM"],
    model: roberta,
};

/// The defaults are those of `RobertaConfig`.
const KIND: Kind =
    Kind { module: "roberta", vocab_size: 50265, pad_token_id: 1, counts_after_padding: true };

/// The layers of heads that are not used.
const OTHER_HEADS: [&str; 4] =
    ["lm_head", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"];

fn roberta(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let Encoder { mut vars, inputs, entries, samples, dropout: hidden_dropout, prefix } =
        encoder(request, &KIND)?;
    let mut entries = Encoder::named(entries, &prefix);
    let pooler = format!("{prefix}pooler.dense");
    let mut unused = [&OTHER_HEADS[..], &[pooler.as_str()]].concat();
    let mut output = Output::HiddenStates;
    if request.has_head() {
        let (count, kind) = labels(request.config)?;
        output = kind;
        vars.push(("num_labels", count.into()));
        let p = request.config.number_or("classifier_dropout", hidden_dropout)?;
        let width = var("hidden_size");
        entries.push(LayerText::new("Select").argument("dim", 1u64).argument("index", 0u64).into());
        entries.extend(dropout(p));
        entries.push(linear("classifier.dense", [width.clone(), width.clone()]).into());
        entries.push(LayerText::new("Tanh").into());
        entries.extend(dropout(p));
        entries.push(linear("classifier.out_proj", [width, var("num_labels")]).into());
    } else {
        unused.extend(["classifier.dense", "classifier.out_proj"]);
    }
    let leftovers = leftovers(&prefix, &unused);
    Ok(FamilyModel { vars, inputs, entries, samples, leftovers, output })
}
