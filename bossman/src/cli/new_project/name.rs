//! The name of a new program. The rules are cargo's.

use anyhow::{bail, Result};

/// Words of Rust, which no crate can be called.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else \
                        enum extern false final fn for gen if impl in let loop macro match mod \
                        move mut override priv pub ref return self static struct super trait true \
                        try type typeof unsized use virtual where while yield unsafe";
/// Folders of cargo, and crates that are always there.
const RESERVED: &str = "alloc build core deps examples incremental proc_macro proc-macro std test";
/// The project's dependencies, its second program, and the crates of BossMan's checkout that come
/// with them: they have the project's version, so its lock file could not tell them apart.
const USED: &str = "anyhow bossman data layerspec link pipeline runtime shm tch tensor tensor-cpp \
                    tokio worker";

/// Refuses a name that cargo would refuse or that the project already uses.
pub(super) fn check(name: &str) -> Result<()> {
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !begins_well || !name.chars().all(allowed) || name == "_" {
        bail!(
            "`{name}` cannot be the name of a program: a name has letters, digits, `-` and `_`, \
             and begins with a letter; give one with --name"
        );
    }
    let lists = [KEYWORDS, RESERVED, USED];
    if lists.iter().any(|words| words.split_whitespace().any(|word| word == name)) {
        bail!(
            "`{name}` cannot be the name of a program, because it means something else in Rust, \
             cargo or this project; give another with --name"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_cargo() {
        for good in ["hello", "my-model", "_x", "model_2", "Hello"] {
            assert!(check(good).is_ok(), "{good}");
        }
        let odd = ["", "2x", "-x", "a b", "a.b", "über", "_", "fn", "test"];
        let used = "bossman data layerspec link pipeline runtime shm tensor tensor-cpp worker";
        for bad in odd.into_iter().chain(used.split(' ')) {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{bad}` cannot be the name")), "{error}");
        }
    }
}
