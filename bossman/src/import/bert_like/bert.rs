//! BERT: an encoder, and the classifier of its first position.

use super::encoder::{encoder, leftovers, Encoder, Kind};
use super::labels::labels;
use super::parts::{dropout, linear};
use crate::import::family::{Family, FamilyModel, Output, Request};
use crate::import::model_text::{var, LayerText};
use crate::BossManError;

pub(in crate::import) const BERT: Family = Family {
    architectures: &[
        "BertForSequenceClassification",
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
    ],
    model: bert,
};

/// The defaults are those of `BertConfig`.
const KIND: Kind =
    Kind { module: "bert", vocab_size: 30522, pad_token_id: 0, counts_after_padding: false };

/// The layers of heads that are not used.
const OTHER_HEADS: [&str; 5] = [
    "cls.predictions",
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.seq_relationship",
];

fn bert(request: &Request<'_>) -> Result<FamilyModel, BossManError> {
    let Encoder { mut vars, inputs, mut entries, samples, dropout: hidden_dropout, prefix } =
        encoder(request, &KIND)?;
    let pooler = format!("{prefix}pooler.dense");
    if !request.has_head() {
        let unused = [&OTHER_HEADS[..], &[pooler.as_str(), "classifier"]].concat();
        let leftovers = leftovers(&prefix, &unused);
        let (entries, output) = (Encoder::named(entries, &prefix), Output::HiddenStates);
        return Ok(FamilyModel { vars, inputs, entries, samples, leftovers, output });
    }
    let (count, output) = labels(request.config)?;
    vars.push(("num_labels", count.into()));
    let p = request.config.number_or("classifier_dropout", hidden_dropout)?;
    entries.push(LayerText::new("Select").argument("dim", 1u64).argument("index", 0u64).into());
    entries.push(linear("pooler.dense", [var("hidden_size"), var("hidden_size")]).into());
    entries.push(LayerText::new("Tanh").into());
    let mut entries = Encoder::named(entries, &prefix);
    entries.extend(dropout(p));
    entries.push(linear("classifier", [var("hidden_size"), var("num_labels")]).into());
    let leftovers = leftovers(&prefix, &OTHER_HEADS);
    Ok(FamilyModel { vars, inputs, entries, samples, leftovers, output })
}
