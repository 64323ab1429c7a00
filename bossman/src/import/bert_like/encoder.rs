//! The layers that BERT and RoBERTa share: embeddings, and blocks that normalise after adding.

use super::parts::{
    activation, add, attention, depth, dropout, keep, layer_norm, linear, INPUT_IDS, PADDING,
};
use crate::import::family::{Head, Request, Samples};
use crate::import::hf_config::HfConfig;
use crate::import::model_text::{var, Block, Entry, LayerText, ModelInput, SEQUENCES};
use crate::rename::Source;
use crate::run_file::yaml_text::Yaml;
use crate::BossManError;
use serde_json::json;

/// Which of two texts a token is of. Without this input all are of the first.
const TYPES: ModelInput = ModelInput { name: "token_type_ids", shape: SEQUENCES, dtype: "int64" };
const INPUTS: [ModelInput; 3] = [INPUT_IDS, PADDING, TYPES];

/// What tells one family from another.
pub(super) struct Kind {
    /// The encoder's name in a model with a head.
    pub(super) module: &'static str,
    /// Of the configuration's class.
    pub(super) vocab_size: u64,
    /// Of the configuration's class.
    pub(super) pad_token_id: u64,
    /// Whether the number of the first position follows that of the padding token.
    pub(super) counts_after_padding: bool,
}

/// An encoder, to which a head may be added.
pub(super) struct Encoder {
    pub(super) vars: Vec<(&'static str, Yaml)>,
    pub(super) inputs: Vec<ModelInput>,
    pub(super) entries: Vec<Entry>,
    pub(super) samples: Samples,
    /// Of hidden states.
    pub(super) dropout: f64,
    /// The beginning of its names in the files, with a dot: none in a model without a head.
    pub(super) prefix: String,
}

/// Builds the encoder that a configuration describes.
pub(super) fn encoder(request: &Request<'_>, kind: &Kind) -> Result<Encoder, BossManError> {
    let config = request.config;
    let decides = "BossMan imports encoders of this family, not decoders";
    config.expect("is_decoder", &[json!(false)], decides)?;
    config.expect("add_cross_attention", &[json!(false)], decides)?;
    let why = "BossMan has absolute positions alone for this family";
    config.expect("position_embedding_type", &[json!("absolute")], why)?;
    if !request.has_head() && request.head == Head::Architecture {
        if let Some((_, task)) = request.architecture.split_once("For") {
            let why = format!("BossMan has no head for {task}; `--head none` leaves it out");
            return Err(config.refused("architectures", &why));
        }
    }
    let size = |key: &str, default: u64| config.size_or(key, default);
    let vocab_size = size("vocab_size", kind.vocab_size)?;
    let rows = size("max_position_embeddings", 512)?;
    let count = depth(config, "num_hidden_layers", 12)?;
    let vars: Vec<(&'static str, Yaml)> = vec![
        ("vocab_size", vocab_size.into()),
        ("type_vocab_size", size("type_vocab_size", 2)?.into()),
        ("max_position_embeddings", rows.into()),
        ("hidden_size", size("hidden_size", 768)?.into()),
        ("intermediate_size", size("intermediate_size", 3072)?.into()),
        ("num_hidden_layers", count.into()),
        ("num_attention_heads", size("num_attention_heads", 12)?.into()),
        ("layer_norm_eps", config.number_or("layer_norm_eps", 1e-12)?.into()),
    ];
    let padding = match config.is_null("pad_token_id") {
        true => None,
        false => {
            // PyTorch counts from the last row.
            let row = config.value("pad_token_id").and_then(|value| value.as_i64());
            let from_end = row.filter(|row| *row < 0 && !kind.counts_after_padding);
            let row = from_end.and_then(|row| vocab_size.checked_add_signed(row));
            let given = row.map_or_else(|| config.count("pad_token_id"), |row| Ok(Some(row)))?;
            Some(given.unwrap_or(kind.pad_token_id))
        }
    };
    let offset = match (kind.counts_after_padding, padding) {
        (false, _) => 0,
        (true, Some(padding)) => padding.saturating_add(1),
        (true, None) => {
            let why = "positions are counted from the number of the padding token";
            return Err(config.refused("pad_token_id", why));
        }
    };
    if offset >= rows {
        let why = format!("expected more than {offset}, the number of the first position");
        return Err(config.refused("max_position_embeddings", &why));
    }
    let (headers, word) = (request.headers, "embeddings.word_embeddings.weight");
    let prefix = match headers.has(word) && !headers.has(&format!("{}.{word}", kind.module)) {
        true => String::new(),
        false => format!("{}.", kind.module),
    };
    let inputs = request.choose_inputs(&INPUTS)?;
    let hidden_dropout = config.number_or("hidden_dropout_prob", 0.1)?;
    let parts = Parts {
        config,
        inputs: &inputs,
        padding,
        offset,
        dropout: hidden_dropout,
        has_old_names: headers.has(&format!("{prefix}embeddings.LayerNorm.gamma")),
    };
    let repeat = Some(var("num_hidden_layers"));
    let embeddings = Block { name: "embeddings".into(), repeat: None, entries: parts.embeddings() };
    let blocks = Block { name: "encoder.layer".into(), repeat, entries: parts.block()? };
    let entries = vec![embeddings.into(), blocks.into()];
    let samples = Samples::Tokens { vocab_size, max_positions: rows - offset };
    Ok(Encoder { vars, inputs, entries, samples, dropout: hidden_dropout, prefix })
}

impl Encoder {
    /// Gives the encoder the name that it has in the files.
    pub(super) fn named(entries: Vec<Entry>, prefix: &str) -> Vec<Entry> {
        match prefix.strip_suffix('.') {
            Some(name) => vec![Block { name: name.into(), repeat: None, entries }.into()],
            None => entries,
        }
    }
}

struct Parts<'a> {
    config: &'a HfConfig,
    inputs: &'a [ModelInput],
    /// The token whose row is not trained.
    padding: Option<u64>,
    /// The row of the first position.
    offset: u64,
    dropout: f64,
    /// Whether norms have the names of TensorFlow.
    has_old_names: bool,
}

impl Parts<'_> {
    /// Words, types and positions, in the order in which transformers adds them.
    fn embeddings(&self) -> Vec<Entry> {
        let words = LayerText::new("Embedding")
            .argument("num_embeddings", var("vocab_size"))
            .argument("embedding_dim", var("hidden_size"));
        let words = match self.padding {
            Some(row) => words.argument("padding_idx", row),
            None => words,
        };
        let words = words.named("word_embeddings").gives(&["words".into()]);
        let mut entries: Vec<Entry> = vec![words.into()];
        if self.inputs.iter().any(|input| input.name == TYPES.name) {
            let types = LayerText::new("Embedding")
                .argument("num_embeddings", var("type_vocab_size"))
                .argument("embedding_dim", var("hidden_size"));
            entries.push(types.named("token_type_embeddings").reads(TYPES.name).into());
        } else {
            // All types are 0, so the first row is added to zeros of one position, then to all.
            entries
                .push(LayerText::new("Slice").argument("dim", 1u64).argument("end", 1u64).into());
            entries.push(LayerText::new("Scale").argument("factor", 0.0).into());
            entries.push(positions("token_type_embeddings", "type_vocab_size").into());
        }
        entries.push(add("words").into());
        let mut places = positions("position_embeddings", "max_position_embeddings");
        if self.offset > 0 {
            places = places.argument("offset", self.offset);
        }
        entries.push(places.into());
        entries.push(self.norm("LayerNorm", None));
        entries.extend(dropout(self.dropout));
        entries
    }

    /// A repeated block.
    fn block(&self) -> Result<Vec<Entry>, BossManError> {
        let weights_dropout = self.config.number_or("attention_probs_dropout_prob", 0.1)?;
        let three = |kind: &str| {
            ["query", "key", "value"]
                .map(|part| Source::from(format!("attention.self.{part}.{kind}")))
        };
        let sizes = ["hidden_size", "num_attention_heads"];
        let attention = attention("attention.self", sizes, weights_dropout, self.inputs)
            .made_of("in_proj_weight", &three("weight"))
            .made_of("in_proj_bias", &three("bias"))
            .made_of("out_proj.weight", &["attention.output.dense.weight".into()])
            .made_of("out_proj.bias", &["attention.output.dense.bias".into()]);
        let wide = [var("hidden_size"), var("intermediate_size")];
        let narrow = [var("intermediate_size"), var("hidden_size")];
        let mut entries = vec![keep("residual"), attention.into()];
        entries.extend(dropout(self.dropout));
        entries.push(add("residual").into());
        entries.push(self.norm("attention.output.LayerNorm", Some("attended")));
        entries.push(linear("intermediate.dense", wide).into());
        entries.push(activation(self.config, "hidden_act", "gelu")?.into());
        entries.push(linear("output.dense", narrow).into());
        entries.extend(dropout(self.dropout));
        entries.push(add("attended").into());
        entries.push(self.norm("output.LayerNorm", None));
        Ok(entries)
    }

    /// A layer norm, whose output may be kept.
    fn norm(&self, name: &str, kept: Option<&str>) -> Entry {
        let mut norm = layer_norm(name, ["hidden_size", "layer_norm_eps"]);
        if self.has_old_names {
            norm = norm
                .made_of("weight", &[format!("{name}.gamma").into()])
                .made_of("bias", &[format!("{name}.beta").into()]);
        }
        match kept {
            Some(variable) => norm.gives(&[variable.into()]).into(),
            None => norm.into(),
        }
    }
}

/// A row for each position.
fn positions(name: &str, rows: &str) -> LayerText {
    LayerText::new("LearnedPositions")
        .argument("num_positions", var(rows))
        .argument("d_model", var("hidden_size"))
        .argument("batch_first", true)
        .named(name)
}

/// The tensors of other heads, and of the pooler, as `ignore` names them.
pub(super) fn leftovers(prefix: &str, others: &[&str]) -> Vec<String> {
    let mut names = vec![format!("{prefix}embeddings.position_ids")];
    for layer in others {
        names.extend(["weight", "bias", "gamma", "beta"].map(|kind| format!("{layer}.{kind}")));
    }
    names
}
