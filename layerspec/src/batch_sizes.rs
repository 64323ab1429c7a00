//! A check of a model for inputs of known sizes.

use crate::{Bindings, Diagnostic, Dim, LayerGraph, LayerKind, TensorType};

impl LayerGraph {
    /// Checks every layer for a batch of these sizes. With symbols alone a layer cannot tell that a
    /// sequence is longer than its table of positions, or that a picture is smaller than a kernel.
    ///
    /// # Errors
    /// The first layer that refuses the sizes, with its place in the file.
    pub fn check_batch(&self, bindings: &Bindings) -> Result<(), Diagnostic> {
        let bound = |ty: TensorType| {
            let dims = ty.dims().iter().map(|dim| dim.bind(bindings));
            let dims: Result<Vec<Dim>, _> = dims.collect();
            dims.map_or(ty.clone(), |dims| TensorType::new(ty.dtype, dims))
        };
        // The user declares the outputs of own layers by words, which nothing can be bound to.
        let is_own = |kind: &LayerKind| {
            matches!(kind, LayerKind::Custom(_) | LayerKind::TorchScript(_) | LayerKind::Aten(_))
        };
        for layer in self.layers().iter().filter(|layer| !is_own(&layer.kind)) {
            let inputs: Vec<TensorType> =
                self.types(&layer.inputs).into_iter().map(bound).collect();
            if let Err(message) = layer.kind.infer(&inputs) {
                let diagnostic = Diagnostic::new(layer.location, message);
                return Err(diagnostic.in_layer(&layer.name, Some(layer.kind.name())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_longer_than_its_positions_is_refused() {
        let text = "inputs: {ids: {shape: [batch, seq], dtype: int64}}
layers:
  - Embedding: {num_embeddings: 10, embedding_dim: 4}
  - LearnedPositions: {num_positions: 8, d_model: 4, batch_first: true}
";
        let graph = LayerGraph::from_yaml(text, "model.yaml").unwrap();
        let check = |seq| graph.check_batch(&Bindings::new().with("batch", 2).with("seq", seq));
        check(8).unwrap();
        graph.check_batch(&Bindings::new()).unwrap();
        let refused = check(9).unwrap_err().in_file("model.yaml").to_string();
        assert_eq!(
            refused,
            "model.yaml:4:5: layer 1 (LearnedPositions): expected at most 8 positions \
             (num_positions), found [2, 9, 4]"
        );
    }
}
