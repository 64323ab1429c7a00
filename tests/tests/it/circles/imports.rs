//! The imports of a file, its other paths, and the items that it defines.

use super::code::{code, Token};
use std::collections::BTreeSet;

/// The words before the name of an item.
const ITEMS: [&str; 8] = ["struct", "enum", "trait", "fn", "type", "const", "static", "union"];

pub(super) struct File {
    /// Its path below `src`.
    pub(super) name: String,
    pub(super) imports: Vec<Import>,
    /// The names of the items that it defines.
    pub(super) items: BTreeSet<String>,
    /// The paths in its code, for example `crate::a::f`.
    pub(super) paths: Vec<Vec<String>>,
}

/// One name that a file imports.
pub(super) struct Import {
    /// The path. Its end is `*` if all names are imported.
    pub(super) path: Vec<String>,
    /// The name in this file.
    pub(super) name: String,
    /// Whether other files import it from here.
    pub(super) is_public: bool,
}

impl File {
    pub(super) fn parse(name: String, text: &str) -> Self {
        let (imports, others) = split_imports(&code(text));
        File { name, imports, items: items(&others), paths: paths(&others) }
    }
}

/// Returns the imports, and the tokens that belong to none.
fn split_imports(code: &[Token]) -> (Vec<Import>, Vec<Token>) {
    let (mut imports, mut others, mut rest) = (Vec::new(), Vec::new(), code);
    while let Some(first) = rest.first() {
        let visibility = visibility_length(rest);
        match import_length(&rest[visibility..]) {
            Some(length) => {
                let tree = &rest[visibility + 1..visibility + length];
                add_tree(tree, &[], visibility > 0, &mut imports);
                rest = &rest[visibility + length..];
            }
            None => {
                others.push(first.clone());
                rest = &rest[1..];
            }
        }
    }
    (imports, others)
}

/// Returns the length of `pub` or `pub(..)`. 0 if there is none.
fn visibility_length(code: &[Token]) -> usize {
    match code {
        [word, Token::Mark('('), ..] if word.is_word("pub") => {
            let end = code.iter().position(|token| *token == Token::Mark(')'));
            end.map_or(0, |end| end + 1)
        }
        [word, ..] if word.is_word("pub") => 1,
        _ => 0,
    }
}

/// Returns the length of an import without its `;`. `None` if there is none.
fn import_length(code: &[Token]) -> Option<usize> {
    match code {
        // The lifetimes of a type: `+ use<'a>`.
        [_, Token::Mark('<'), ..] => None,
        [word, ..] if word.is_word("use") => {
            code.iter().position(|token| *token == Token::Mark(';'))
        }
        _ => None,
    }
}

/// Adds the names of a tree such as `a::{self, b::C as D}`, whose parent has the path `above`.
fn add_tree(tree: &[Token], above: &[String], is_public: bool, imports: &mut Vec<Import>) {
    // Another crate: `::data`.
    if tree.is_empty() || tree.first() == Some(&Token::Colons) {
        return;
    }
    let (mut path, mut alias) = (above.to_vec(), None);
    let mut tokens = tree.iter().enumerate();
    while let Some((at, token)) = tokens.next() {
        match token {
            Token::Word(word) if word == "as" => alias = tokens.next().map(|(_, name)| name),
            Token::Word(word) => path.push(word.clone()),
            Token::Mark('*') => path.push("*".into()),
            Token::Mark('{') => {
                for part in parts(&tree[at + 1..]) {
                    add_tree(part, &path, is_public, imports);
                }
                return;
            }
            _ => {}
        }
    }
    if path.len() > 1 && path.ends_with(&["self".to_string()]) {
        path.pop();
    }
    let name = match (alias, path.last()) {
        (Some(Token::Word(alias)), _) => alias.clone(),
        (_, Some(last)) => last.clone(),
        _ => return,
    };
    imports.push(Import { path, name, is_public });
}

/// Returns the parts between commas, up to the brace that ends them.
fn parts(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0usize);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') if depth == 0 => {
                parts.push(&tokens[start..at]);
                break;
            }
            Token::Mark('}') => depth -= 1,
            Token::Mark(',') if depth == 0 => {
                parts.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

fn items(code: &[Token]) -> BTreeSet<String> {
    let mut items = BTreeSet::new();
    for (at, token) in code.iter().enumerate() {
        let name = match token {
            Token::Word(word) if ITEMS.contains(&word.as_str()) => code.get(at + 1),
            // After a `!`.
            Token::Word(word) if word == "macro_rules" => code.get(at + 2),
            _ => None,
        };
        if let Some(Token::Word(name)) = name {
            items.insert(name.clone());
        }
    }
    items
}

fn paths(code: &[Token]) -> Vec<Vec<String>> {
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < code.len() {
        let path = path_at(&code[at..]);
        let length = (2 * path.len()).saturating_sub(1).max(1);
        // The end of `<T as U>::a::b` is not a path of its own.
        let is_whole = at == 0 || code[at - 1] != Token::Colons;
        if is_whole && path.len() > 1 {
            paths.push(path);
        }
        at += length;
    }
    paths
}

/// Returns the path that begins here. It is empty if there is none.
fn path_at(code: &[Token]) -> Vec<String> {
    let (mut path, mut rest) = (Vec::new(), code);
    while let [Token::Word(word), after @ ..] = rest {
        path.push(word.clone());
        match after {
            [Token::Colons, next @ ..] => rest = next,
            _ => break,
        }
    }
    path
}
