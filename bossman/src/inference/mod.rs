//! Uses a trained model: evaluation, prediction, generation, translation.
//!
//! ```text
//! load_model -> score
//!          +--> predict
//!          +--> generate -> sampling
//!          +--> translate -> translation_score -> bleu
//! ```

pub(crate) mod bleu;
pub(crate) mod generate;
pub(crate) mod load_model;
pub(crate) mod predict;
pub(crate) mod sampling;
pub(crate) mod score;
pub(crate) mod translate;
pub(crate) mod translation_score;
