//! Model files: their syntax, the resulting graph, and the errors about mistakes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "everything here is part of a test"
)]

mod bounds;
mod constants;
mod dims;
mod fuzz;
mod golden_texts;
mod graph;
mod incremental;
mod llama_attention;
mod parameters;
mod rope_scaling;
mod shapes;
mod support;
mod user_defined;
