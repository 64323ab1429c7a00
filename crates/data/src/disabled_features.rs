//! Stand-ins for the formats that this build leaves out. Each returns an error that names the
//! feature to build with.

#[cfg(not(feature = "parquet"))]
pub(super) mod parquet {
    use crate::column::Column;
    use crate::column_places::EachRow;
    use crate::table::Table;
    use crate::DataError;
    use layerspec::DType;
    use std::collections::BTreeMap;
    use std::path::Path;

    pub(crate) fn open(
        table: &Table,
        _: &BTreeMap<String, DType>,
    ) -> Result<BTreeMap<String, Column>, DataError> {
        Err(DataError::file(&table.path, super::refusal("Parquet files", "parquet")))
    }

    pub(crate) fn rows(path: &Path, _: &[&str], _: &mut EachRow<'_>) -> Result<(), DataError> {
        Err(DataError::file(path, super::refusal("Parquet files", "parquet")))
    }
}

#[cfg(not(feature = "pictures"))]
pub(super) mod picture {
    use std::path::Path;

    pub(crate) fn size(_: &Path) -> Result<(u32, u32), String> {
        Err(super::refusal("pictures", "pictures"))
    }

    pub(crate) fn decode(_: &Path, _: u64) -> Result<(u32, u32, Vec<u8>), String> {
        Err(super::refusal("pictures", "pictures"))
    }
}

#[cfg(not(feature = "tokenizers"))]
pub(super) mod vocabulary {
    /// An empty type: a program without the feature loads no tokenizer.
    #[derive(Clone, Debug)]
    pub enum TokenizerFile {}

    impl TokenizerFile {
        pub(crate) fn from_bytes(_: &[u8]) -> Result<Self, String> {
            Err(super::refusal("tokenizer.json files", "tokenizers"))
        }

        pub(crate) fn unknown(&self) -> Option<u32> {
            match *self {}
        }

        pub(crate) fn encode(&self, _: &str, _: &mut Vec<u32>) -> Result<(), String> {
            match *self {}
        }

        pub(crate) fn encode_with_special_tokens(
            &self,
            _: &str,
            _: &mut Vec<u32>,
        ) -> Result<(), String> {
            match *self {}
        }

        pub(crate) fn begin_tokens(&self) -> Result<Vec<u32>, String> {
            match *self {}
        }

        pub(crate) fn decode(&self, _: &[u32]) -> Result<String, String> {
            match *self {}
        }

        pub(crate) fn size(&self, _: bool) -> usize {
            match *self {}
        }

        pub(crate) fn token(&self, _: u32) -> Option<String> {
            match *self {}
        }

        pub(crate) fn id(&self, _: &str) -> Option<u32> {
            match *self {}
        }
    }
}

fn refusal(what: &str, feature: &str) -> String {
    format!(
        "this program was built without support for {what}; build it with `make build`, or with \
         the cargo feature `{feature}`"
    )
}
