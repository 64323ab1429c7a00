//! Nested lists of numbers, as JSON and Parquet store tensors.

/// The numbers of one sample and their shape. Errors do not name their place.
#[derive(Debug, Default)]
pub(super) struct Nested {
    pub(super) numbers: Vec<f64>,
    pub(super) shape: Vec<u64>,
}

impl Nested {
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.shape.clear();
    }

    /// Begins a list of `size` items within `depth` other lists.
    pub(super) fn list(&mut self, depth: usize, size: usize) -> Result<(), String> {
        let size = size as u64;
        match self.shape.get(depth) {
            Some(known) if *known != size => {
                Err(format!("lists of {known} and of {size} beside each other"))
            }
            Some(_) => Ok(()),
            None if self.numbers.is_empty() => {
                self.shape.push(size);
                Ok(())
            }
            None => Err("lists and numbers beside each other".into()),
        }
    }

    /// Adds a number within `depth` lists.
    pub(super) fn number(&mut self, depth: usize, number: f64) -> Result<(), String> {
        if depth != self.shape.len() {
            return Err("lists and numbers beside each other".into());
        }
        self.numbers.push(number);
        Ok(())
    }
}
