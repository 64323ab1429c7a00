//! The keys of `config.json`, read by type. Each error names the key and the file.

use crate::data::bounded_file;
use crate::output::printable;
use crate::BossManError;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The largest `config.json`. A usual one has a kilobyte, and one with many labels megabytes.
const MAX_BYTES: u64 = 16 << 20;
/// The letters of a value that a message shows.
const SHOWN: usize = 80;

/// A configuration, or a mapping in it. `null` is as absent.
#[derive(Debug)]
pub(super) struct HfConfig {
    path: PathBuf,
    /// The beginning of a key in messages: `rope_scaling.` for a mapping of that name.
    prefix: String,
    keys: Map<String, Value>,
}

impl HfConfig {
    /// Reads the configuration of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self, BossManError> {
        let path = folder.join("config.json");
        match Self::read_file(&path)? {
            Some(config) => Ok(config),
            None => {
                let problem = "is missing; name a folder as `save_pretrained` of Hugging Face's \
                               transformers writes it";
                Err(BossManError::file(&path, problem))
            }
        }
    }

    /// Reads a file of keys. `None` if it is not there.
    pub(super) fn read_file(path: &Path) -> Result<Option<Self>, BossManError> {
        let Some(text) = bounded_file::read(path, MAX_BYTES)? else { return Ok(None) };
        let path = path.to_path_buf();
        match serde_json::from_slice(&text) {
            Ok(Value::Object(keys)) => Ok(Some(HfConfig { path, prefix: String::new(), keys })),
            Ok(_) => Err(BossManError::file(&path, "is no mapping of keys to values")),
            Err(e) => Err(BossManError::file(&path, format!("is not JSON: {e}"))),
        }
    }

    /// Its file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives values the names that their class stores them under: each pair is a further name that
    /// it takes, and its own one.
    ///
    /// # Errors
    /// A value stands under both names, and they differ.
    pub(super) fn with_own_names(&self, names: &[(&str, &str)]) -> Result<Self, BossManError> {
        let mut keys = self.keys.clone();
        for (other, own) in names {
            let Some(value) = keys.remove(*other).filter(|value| !value.is_null()) else {
                continue;
            };
            if self.value(own).is_some_and(|found| *found != value) {
                let why =
                    format!("expected the value of `{own}`, which means the same; remove one");
                return Err(self.refused(other, &why));
            }
            keys.insert((*own).to_string(), value);
        }
        Ok(HfConfig { path: self.path.clone(), prefix: self.prefix.clone(), keys })
    }

    /// A value as it is written.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// A whole number, 1 or more.
    pub(super) fn size(&self, key: &str) -> Result<Option<u64>, BossManError> {
        let size = |value: &Value| value.as_u64().filter(|size| *size > 0);
        self.read_as(key, "a whole number, 1 or more", size)
    }

    /// A whole number, 1 or more, or the default.
    pub(super) fn size_or(&self, key: &str, default: u64) -> Result<u64, BossManError> {
        Ok(self.size(key)?.unwrap_or(default))
    }

    /// A whole number, 1 or more. Here `null` is not as absent: it is none, and an absent key has
    /// the default.
    pub(super) fn size_or_none(
        &self,
        key: &str,
        default: Option<u64>,
    ) -> Result<Option<u64>, BossManError> {
        match self.keys.contains_key(key) {
            true => self.size(key),
            false => Ok(default),
        }
    }

    /// A whole number, 0 or more.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>, BossManError> {
        self.read_as(key, "a whole number, 0 or more", Value::as_u64)
    }

    /// A whole number, 0 or more, or the default.
    pub(super) fn count_or(&self, key: &str, default: u64) -> Result<u64, BossManError> {
        Ok(self.count(key)?.unwrap_or(default))
    }

    /// Whether the value is written as `null`, for keys of which that is not the default.
    pub(super) fn is_null(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(Value::is_null)
    }

    /// A number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, BossManError> {
        self.read_as(key, "a number", Value::as_f64)
    }

    /// A number, or the default.
    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64, BossManError> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// A number. Here `null` is not as absent: it is none, and an absent key has the default.
    pub(super) fn number_or_none(
        &self,
        key: &str,
        default: Option<f64>,
    ) -> Result<Option<f64>, BossManError> {
        match self.keys.contains_key(key) {
            true => self.number(key),
            false => Ok(default),
        }
    }

    /// `true` or `false`, or the default.
    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool, BossManError> {
        Ok(self.read_as(key, "`true` or `false`", Value::as_bool)?.unwrap_or(default))
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, BossManError> {
        self.read_as(key, "a text", Value::as_str)
    }

    /// A list.
    pub(super) fn list(&self, key: &str) -> Result<Option<&[Value]>, BossManError> {
        self.read_as(key, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// A mapping of further keys. An empty one is as absent.
    pub(super) fn mapping(&self, key: &str) -> Result<Option<HfConfig>, BossManError> {
        let keys = self.read_as(key, "a mapping", Value::as_object)?;
        Ok(keys.filter(|keys| !keys.is_empty()).map(|keys| HfConfig {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            keys: keys.clone(),
        }))
    }

    /// Refuses a value that BossMan has no layer for. A key that is absent has an allowed value.
    pub(super) fn expect(
        &self,
        key: &str,
        allowed: &[Value],
        why: &str,
    ) -> Result<(), BossManError> {
        match self.value(key).filter(|value| !allowed.contains(value)) {
            Some(_) => Err(self.refused(key, why)),
            None => Ok(()),
        }
    }

    /// An error about the value of a key.
    pub(super) fn refused(&self, key: &str, why: &str) -> BossManError {
        let value = self.keys.get(key).unwrap_or(&Value::Null).to_string();
        let value = printable(&value, SHOWN);
        BossManError::file(&self.path, format!("`{}{key}` is {value}: {why}", self.prefix))
    }

    /// The value of a key, if it has the type. Any other value is an error.
    fn read_as<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, BossManError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.refused(key, &format!("expected {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<HfConfig, BossManError> {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("config.json"), text).unwrap();
        HfConfig::read(place.path())
    }

    #[test]
    fn keys_are_read_by_type_and_null_is_as_absent() {
        let config = read(
            r#"{"hidden_size": 64, "eps": 1e-5, "tied": true, "act": "silu", "none": null,
                "zero": 0, "list": [1, 0], "rope": {"factor": 8.0}, "empty": {}}"#,
        )
        .unwrap();
        assert_eq!(config.size("hidden_size").unwrap(), Some(64));
        assert_eq!(config.size_or("none", 7).unwrap(), 7);
        assert_eq!(config.size_or_none("none", Some(7)).unwrap(), None);
        assert_eq!(config.size_or_none("absent", Some(7)).unwrap(), Some(7));
        assert_eq!(config.size_or_none("hidden_size", None).unwrap(), Some(64));
        assert_eq!(config.number_or_none("none", Some(7.0)).unwrap(), None);
        assert_eq!(config.number_or_none("absent", Some(7.0)).unwrap(), Some(7.0));
        assert_eq!(config.number_or_none("eps", None).unwrap(), Some(1e-5));
        assert_eq!(config.count_or("zero", 7).unwrap(), 0);
        assert_eq!(config.count_or("absent", 7).unwrap(), 7);
        assert_eq!(config.count("hidden_size").unwrap(), Some(64));
        assert!(config.is_null("none") && !config.is_null("absent") && !config.is_null("act"));
        assert_eq!(config.number_or("eps", 1.0).unwrap(), 1e-5);
        assert!(config.flag_or("tied", false).unwrap());
        assert_eq!(config.text("act").unwrap(), Some("silu"));
        assert_eq!(config.list("list").unwrap().unwrap().len(), 2);
        assert!(config.mapping("empty").unwrap().is_none());
        let rope = config.mapping("rope").unwrap().unwrap();
        assert_eq!(rope.number("factor").unwrap(), Some(8.0));
        config.expect("act", &[json!("silu")], "it is the only one").unwrap();
        config.expect("none", &[], "it cannot be read").unwrap();
    }

    #[test]
    fn a_value_may_have_another_name() {
        let names = [("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer")];
        let own = |text: &str| read(text).unwrap().with_own_names(&names);
        let config = own(r#"{"hidden_size": 8, "n_layer": 2, "num_hidden_layers": null}"#).unwrap();
        assert_eq!(config.size("n_embd").unwrap(), Some(8));
        assert_eq!(config.size("n_layer").unwrap(), Some(2));
        assert_eq!(config.size("hidden_size").unwrap(), None);
        let config = own(r#"{"hidden_size": 8, "n_embd": 8, "n_layer": null}"#).unwrap();
        assert_eq!((config.size("n_embd").unwrap(), config.is_null("n_layer")), (Some(8), true));
        let error = own(r#"{"hidden_size": 8, "n_embd": 4}"#).unwrap_err().to_string();
        let expected = "config.json: `hidden_size` is 8: expected the value of `n_embd`, which";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn every_error_names_the_key_and_the_file() {
        let config = read(r#"{"hidden_size": "64", "rope": {"factor": true}}"#).unwrap();
        let error = config.size("hidden_size").unwrap_err().to_string();
        assert!(
            error.ends_with(
                "config.json: `hidden_size` is \"64\": expected a whole number, 1 or more"
            ),
            "{error}"
        );
        let rope = config.mapping("rope").unwrap().unwrap();
        let error = rope.number("factor").unwrap_err().to_string();
        assert!(
            error.ends_with("config.json: `rope.factor` is true: expected a number"),
            "{error}"
        );
        let error = config.expect("hidden_size", &[json!(64)], "why").unwrap_err().to_string();
        assert!(error.ends_with("`hidden_size` is \"64\": why"), "{error}");
        for (text, expected) in [("[1]", "is no mapping"), ("{", "is not JSON")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(&format!("config.json: {expected}")), "{error}");
        }
    }

    #[test]
    fn a_large_or_missing_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let error = HfConfig::read(place.path()).unwrap_err().to_string();
        assert!(error.contains("config.json: is missing; name a folder"), "{error}");
        let error = read(&" ".repeat((MAX_BYTES + 1) as usize)).unwrap_err().to_string();
        assert!(error.contains("has 16777217 bytes"), "{error}");
    }
}
