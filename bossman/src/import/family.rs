//! What a family of models gives: the layers for a configuration.

use super::hf_config::HfConfig;
use super::model_text::{Entry, ModelInput};
use crate::run_file::yaml_text::Yaml;
use crate::weights::tensor_headers::TensorHeaders;
use crate::BossManError;

/// Whether an imported model has the layers after its last hidden states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// As the architecture has them: `LlamaForCausalLM` does, `LlamaModel` does not.
    #[default]
    Architecture,
    /// None: the model's output is its last hidden states.
    None,
}

/// Architectures that are built from the same layers.
pub(super) struct Family {
    /// The names of `architectures` in `config.json`.
    pub(super) architectures: &'static [&'static str],
    /// Builds the layers.
    pub(super) model: fn(&Request<'_>) -> Result<FamilyModel, BossManError>,
}

/// A model that is asked for.
pub(super) struct Request<'a> {
    pub(super) architecture: &'a str,
    pub(super) config: &'a HfConfig,
    pub(super) headers: &'a TensorHeaders,
    pub(super) head: Head,
    /// The names of its inputs. None are those of the family.
    pub(super) inputs: &'a [String],
}

/// A model as a family builds it.
pub(super) struct FamilyModel {
    pub(super) vars: Vec<(&'static str, Yaml)>,
    pub(super) inputs: Vec<ModelInput>,
    pub(super) entries: Vec<Entry>,
    pub(super) samples: Samples,
    /// Tensors that files may hold and the model does not use, as `ignore` of a run file names
    /// them.
    pub(super) leftovers: Vec<String>,
    pub(super) output: Output,
}

/// What goes into a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Samples {
    Tokens {
        /// The number of tokens.
        vocab_size: u64,
        /// The most positions of a sequence.
        max_positions: u64,
    },
    /// Square pictures.
    Pictures {
        /// The numbers of a point: 3 of a coloured picture.
        channels: u64,
        /// The points of a side.
        size: u64,
    },
}

/// What comes out of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// A logit for each token, by a head with a weight of its own.
    Logits,
    /// A logit for each token, by the weight of the embedding.
    TiedLogits,
    HiddenStates,
    /// A logit for each class of a whole sequence.
    Classes,
    /// Numbers for a whole sequence.
    Numbers,
    /// A logit for each label of a whole sequence, of which several may be right.
    Flags,
}

impl Output {
    /// Whether it is about whole sequences, and not about their positions.
    pub(super) fn is_of_sequences(self) -> bool {
        matches!(self, Output::Classes | Output::Numbers | Output::Flags)
    }
}

/// How the names of architectures with a head end.
const HEADS: [&str; 4] =
    ["ForCausalLM", "LMHeadModel", "ForSequenceClassification", "ForImageClassification"];

impl Request<'_> {
    /// Whether the model has a head.
    pub(super) fn has_head(&self) -> bool {
        let is_known = HEADS.iter().any(|head| self.architecture.ends_with(head));
        self.head == Head::Architecture && is_known
    }

    /// The inputs that are asked for, of those that the family has. The first is always there.
    pub(super) fn choose_inputs(
        &self,
        known: &[ModelInput],
    ) -> Result<Vec<ModelInput>, BossManError> {
        let is_asked = |input: &&ModelInput| self.inputs.iter().any(|name| name == input.name);
        if let Some(unknown) =
            self.inputs.iter().find(|name| known.iter().all(|input| input.name != name.as_str()))
        {
            let known: Vec<&str> = known.iter().map(|input| input.name).collect();
            let hint = match unknown.as_str() {
                "attention_mask" => "; key_padding_mask is its opposite: true where no token is",
                _ => "",
            };
            return Err(BossManError::Usage(format!(
                "--inputs: {} has no input `{unknown}`; it has {}{hint}",
                self.architecture,
                known.join(", ")
            )));
        }
        let (first, others) = known.split_at(known.len().min(1));
        let others = others.iter().filter(is_asked);
        Ok(first.iter().chain(others).cloned().collect())
    }
}
