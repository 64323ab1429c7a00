//! Text from a language model, token by token, across the workers.

use crate::data::{LoadedTokenizer, Text};
use crate::inference::sampling::{Sampler, Sampling};
use crate::{BossMan, BossManError, Model};
use layerspec::{Dim, LayerId};
use pipeline::kv_cache_step::KvCacheStep;
use pipeline::loss::ClassDim;
use pipeline::round_outputs::LastPosition;
use pipeline::LossSpec;
use tch::Tensor;
use tensor::TensorError;

/// The settings of the text to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Its prompt.
    pub prompt: String,
    /// The most tokens to add.
    pub max_new_tokens: u64,
    /// How each is drawn.
    pub sampling: Sampling,
}

/// Text that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The text after the prompt.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A language model at work. Every worker keeps the keys and values of the positions so far, so
/// each token takes one position through the stages. If a layer must see the whole sequence, the
/// whole sequence goes forward each time.
pub struct Generator {
    tokens: LoadedTokenizer,
    /// The tokens that end a text.
    ends: Vec<u32>,
    /// The layers that continue from cached keys and values, or the reason why some layer cannot.
    cached_layers: Result<Vec<LayerId>, String>,
    /// The most positions of the model's input: those that it was trained with.
    max_positions: usize,
}

/// The part of the text that the model sees.
struct Window {
    start: usize,
    /// The number of its tokens that the workers cache.
    cached_tokens: usize,
}

impl Generator {
    /// A generator for a model whose input are tokens of [`Text`].
    ///
    /// # Errors
    /// The model does not have exactly one input of token sequences of any length, or the tokenizer
    /// cannot be read.
    pub fn new(model: &Model, text: &Text) -> Result<Self, BossManError> {
        let graph = model.graph();
        let [input] = graph.inputs() else {
            let count = graph.inputs().len();
            let problem =
                format!("text is made by a model with one input, of tokens; this one has {count}");
            return Err(BossManError::Usage(problem));
        };
        if let Some(Dim::Fixed(size)) = graph.value(*input).ty.dims().get(1) {
            let problem = format!(
                "the model's input has {size} positions; give their number a name, as `seq`, in \
                 the model"
            );
            return Err(BossManError::Usage(problem));
        }
        if let Some(Dim::Fixed(rows @ 2..)) = graph.value(*input).ty.dims().first() {
            let problem = format!(
                "the model's input has batches of {rows}, but one text is made at a time; write a \
                 word as `batch` for the size in the model"
            );
            return Err(BossManError::Usage(problem));
        }
        let tokens = LoadedTokenizer::load(&text.tokenizer)?;
        let ends = text.eos.iter().map(|name| tokens.special_token("eos", name));
        let ends = ends.collect::<Result<_, _>>()?;
        let cached_layers = graph.incremental(&[*input]).map_err(|needs| needs.to_string());
        let most = text.sequence_length.min(graph.max_positions().unwrap_or(u64::MAX));
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(Generator { tokens, ends, cached_layers, max_positions: most })
    }

    /// The reason why the whole sequence goes through the stages for every token, if it does.
    pub fn why_not_incremental(&self) -> Option<&str> {
        self.cached_layers.as_ref().err().map(String::as_str)
    }

    /// The number of tokens at the beginning of a prompt that the model does not see, because it
    /// has fewer positions.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn unseen_tokens(&self, prompt: &str) -> Result<usize, BossManError> {
        let mut tokens = Vec::new();
        self.tokens.encode_with_special_tokens(prompt, &mut tokens)?;
        Ok(tokens.len().saturating_sub(self.max_positions))
    }

    /// Generates the text after the prompt, piece by piece.
    ///
    /// # Errors
    /// A worker failed, a setting is out of its range, or the model's output does not have a logit
    /// for each token and position.
    pub async fn generate(
        &self,
        boss: &mut BossMan,
        what: &Generation,
        mut on_text: impl FnMut(&str),
    ) -> Result<Generated, BossManError> {
        what.sampling.check()?;
        let mut tokens = Vec::new();
        self.tokens.encode_with_special_tokens(&what.prompt, &mut tokens)?;
        if tokens.is_empty() {
            return Err(BossManError::Usage(
                "the prompt has no token to begin with; give some text".into(),
            ));
        }
        let prompt_tokens = tokens.len();
        let prompt = self.tokens.decode(&tokens)?;
        let mut sampler = what.sampling.sampler();
        let mut emitted = String::new();
        let start = prompt_tokens.saturating_sub(self.max_positions);
        let mut window = Window { start, cached_tokens: 0 };
        for _ in 0..what.max_new_tokens {
            let token = self.next_token(boss, &tokens, &mut window, &mut sampler).await?;
            if self.ends.contains(&token) {
                break;
            }
            tokens.push(token);
            // Text that may still change is held back.
            let text = self.text_after_prompt(&tokens, prompt_tokens, &prompt)?;
            let sure = text.trim_end_matches('\u{fffd}');
            if let Some(more) = not_yet_emitted(&emitted, sure) {
                on_text(more);
                emitted = sure.to_string();
            }
        }
        let text = self.text_after_prompt(&tokens, prompt_tokens, &prompt)?;
        if let Some(rest) = not_yet_emitted(&emitted, &text) {
            on_text(rest);
        }
        tokens.drain(..prompt_tokens);
        Ok(Generated { text, tokens })
    }

    /// The text after the prompt. It is decoded with the prompt: a character may be several tokens,
    /// and some tokenizers leave out a space at the beginning of a text.
    fn text_after_prompt(
        &self,
        tokens: &[u32],
        prompt_tokens: usize,
        prompt: &str,
    ) -> Result<String, BossManError> {
        let whole = self.tokens.decode(tokens)?;
        Ok(match whole.strip_prefix(prompt) {
            Some(rest) => rest.to_string(),
            None => self.tokens.decode(&tokens[prompt_tokens..])?,
        })
    }

    /// Runs the new tokens through the stages, and draws the next token from the logits of the last
    /// position.
    async fn next_token(
        &self,
        boss: &mut BossMan,
        tokens: &[u32],
        window: &mut Window,
        sampler: &mut Sampler,
    ) -> Result<u32, BossManError> {
        if tokens.len() - window.start > self.max_positions {
            // Drops the oldest half of the window and reads the rest again, so that this happens
            // rarely.
            *window =
                Window { start: tokens.len() - self.max_positions.div_ceil(2), cached_tokens: 0 };
        }
        let visible = &tokens[window.start..];
        let (new, cached) = match &self.cached_layers {
            Ok(layers) => {
                let cached = KvCacheStep {
                    past: window.cached_tokens as u64,
                    rows: Vec::new(),
                    layers: layers.clone(),
                };
                (&visible[window.cached_tokens..], Some(cached))
            }
            Err(_) => (visible, None),
        };
        let input: Vec<i64> = new.iter().map(|token| i64::from(*token)).collect();
        let input = Tensor::f_from_slice(&input)
            .and_then(|row| row.f_unsqueeze(0))
            .map_err(TensorError::from)?;
        let last = last_position(new.len(), boss.trainer.loss.as_ref());
        let output = boss.trainer.forward_cached(&[input], cached, last).await?;
        window.cached_tokens = visible.len();
        let logits = last_logits(&output, last)?;
        let logits = logits.f_select(0, 0).map_err(TensorError::from)?;
        Ok(sampler.draw(&logits)?)
    }
}

/// The end of a text whose beginning was emitted, if there is more. A stray byte may have changed
/// characters of the beginning, because some tokenizers decode bytes in a row as a whole. What
/// follows the first changed one is then emitted.
fn not_yet_emitted<'a>(emitted: &str, text: &'a str) -> Option<&'a str> {
    if emitted.starts_with(text) {
        return None;
    }
    let same = emitted.chars().zip(text.chars()).take_while(|(a, b)| a == b);
    let same: usize = same.map(|(character, _)| character.len_utf8()).sum();
    text.get(same..)
}

/// The last of the positions of a model's output: `[batch, vocabulary, positions]`, or `[batch,
/// positions, vocabulary]` if the loss has its classes in the last dimension.
pub(crate) fn last_position(positions: usize, loss: Option<&LossSpec>) -> LastPosition {
    let class_dim = loss.and_then(LossSpec::classes).map(|classes| classes.class_dim);
    let dim = match class_dim.unwrap_or_default() {
        ClassDim::Second => 2,
        ClassDim::Last => 1,
    };
    LastPosition { dim, positions: positions as u64 }
}

/// The logits of the last position, `[batch, vocabulary]`, of an output with all positions, or with
/// the last one only.
///
/// # Errors
/// The output does not have this shape.
pub(crate) fn last_logits(output: &Tensor, last: LastPosition) -> Result<Tensor, BossManError> {
    let (size, LastPosition { dim, positions }) = (output.size(), last);
    let only = LastPosition { positions: 1, ..last };
    if let Some(index) = last.index(&size).or_else(|| only.index(&size)) {
        return Ok(output.f_select(i64::from(dim), index).map_err(TensorError::from)?);
    }
    let expected = match dim {
        2 => {
            "[batch, vocabulary, positions], as CrossEntropyLoss takes it; for [batch, positions, \
             vocabulary] set `class_dim: -1` of the loss"
        }
        _ => "[batch, positions, vocabulary], as CrossEntropyLoss takes it with `class_dim: -1`",
    };
    let problem =
        format!("the model gives {size:?} for {positions} positions; expected {expected}");
    Err(BossManError::Usage(problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeline::loss::Classes;
    use tch::{Device, Kind};

    #[test]
    fn text_goes_on_after_a_stray_byte_changed_what_was_emitted() {
        assert_eq!(not_yet_emitted("", "On"), Some("On"));
        assert_eq!(not_yet_emitted("One", "One two"), Some(" two"));
        assert_eq!(not_yet_emitted("One", "One"), None);
        assert_eq!(not_yet_emitted("One\n", "One"), None, "its last byte waits for others");
        let changed = "One\u{fffd}\u{fffd} there";
        assert_eq!(not_yet_emitted("One\n", changed), Some("\u{fffd}\u{fffd} there"));
        assert_eq!(not_yet_emitted(changed, &format!("{changed} ok")), Some(" ok"));
    }

    #[test]
    fn logits_of_the_last_position_are_found_in_both_layouts() {
        let output = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([2, 3, 4]);
        let classes = Classes { class_dim: ClassDim::Last, ..Classes::default() };
        let last = LossSpec::CrossEntropyLoss { classes, label_smoothing: 0.0 };
        let second = LossSpec::cross_entropy();
        let last_logits = |positions, loss| last_logits(&output, last_position(positions, loss));
        assert_eq!(last_logits(4, None).unwrap(), output.select(2, 3));
        assert_eq!(last_logits(4, Some(&second)).unwrap(), output.select(2, 3));
        assert_eq!(last_logits(3, Some(&last)).unwrap(), output.select(1, 2));
        let error = last_logits(3, Some(&second)).unwrap_err().to_string();
        assert!(error.ends_with("set `class_dim: -1` of the loss"), "{error}");
        let error = last_logits(4, Some(&last)).unwrap_err().to_string();
        assert!(error.ends_with("takes it with `class_dim: -1`"), "{error}");
        let only = output.narrow(2, 3, 1);
        let found = super::last_logits(&only, last_position(4, None)).unwrap();
        assert_eq!(found, output.select(2, 3));
    }
}
