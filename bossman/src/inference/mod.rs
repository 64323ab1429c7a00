//! Uses a trained model: evaluation, prediction, generation, translation.
//!
//! ```text
//! load_model -> scoring -> score (a value)
//!          +--> predict
//!          +--> generate -> sampling
//!          +--> translation_scoring -> translate -> search (its settings)
//!                 +-> bleu, translation_score (values)
//! ```

pub(crate) mod bleu;
pub(crate) mod generate;
pub(crate) mod load_model;
pub(crate) mod predict;
pub(crate) mod sampling;
pub(crate) mod score;
mod scoring;
pub(crate) mod search;
pub(crate) mod translate;
pub(crate) mod translation_score;
mod translation_scoring;
