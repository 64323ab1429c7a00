//! The files of a crate as modules, and the file to which a path leads.

use super::imports::{File, Import};
use std::collections::BTreeMap;

/// The most re-exports that lead to an item.
const MAX_RE_EXPORTS: usize = 20;

/// The names of a module and of those that it is in. The crate's root has none.
type Module = Vec<String>;

pub(super) struct Crate {
    files: BTreeMap<Module, File>,
}

/// A file uses an item that another file defines.
pub(super) struct Arrow<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    /// The path that leads there.
    pub(super) path: String,
}

impl Crate {
    /// Returns a crate with these files: paths below `src`, each with its text.
    pub(super) fn of(sources: impl IntoIterator<Item = (String, String)>) -> Self {
        let file = |(name, text): (String, String)| {
            let module = module(&name)?;
            Some((module, File::parse(name, &text)))
        };
        Crate { files: sources.into_iter().filter_map(file).collect() }
    }

    /// Returns the arrows between files, without those between a module and its parent, and those
    /// to and from the root. A re-export alone is no arrow of the file that it is in.
    pub(super) fn arrows(&self) -> Vec<Arrow<'_>> {
        let mut arrows = Vec::new();
        for (module, file) in &self.files {
            for path in used_paths(file) {
                let absolute = self.absolute(module, &path);
                let Some(used) = absolute.and_then(|path| self.definition(&path, 0)) else {
                    continue;
                };
                if used != module && !is_near(module, used) {
                    let (from, to) = (file.name.as_str(), self.files[used].name.as_str());
                    arrows.push(Arrow { from, to, path: path.join("::") });
                }
            }
        }
        arrows
    }

    /// Returns a path of a module as the root sees it. `None` if it leads out of the crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| part.as_str() == "super").count();
                let base = &module[..module.len().checked_sub(ups)?];
                Some([base, &path[ups..]].concat())
            }
            _ => {
                let child = [module, &path[..1]].concat();
                self.files.contains_key(&child).then(|| [module, path].concat())
            }
        }
    }

    /// Returns the module whose file defines what an absolute path names. `depth` counts the
    /// re-exports before.
    fn definition(&self, path: &[String], depth: usize) -> Option<&Module> {
        if depth > MAX_RE_EXPORTS {
            return None;
        }
        let is_module = |length: &usize| self.files.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module)?;
        let (module, file) = self.files.get_key_value(&path[..length])?;
        let Some((name, rest)) = path[length..].split_first() else { return Some(module) };
        if name == "*" || file.items.contains(name) {
            return Some(module);
        }
        let through = |import| self.re_exported(module, import, name, rest, depth);
        Some(file.imports.iter().find_map(through).unwrap_or(module))
    }

    /// Returns the module that defines `name`, and the `rest` of the path in it, if this import
    /// brings it into `module`.
    fn re_exported(
        &self,
        module: &[String],
        import: &Import,
        name: &str,
        rest: &[String],
        depth: usize,
    ) -> Option<&Module> {
        let path = self.absolute(module, &import.path)?;
        if import.name == name {
            return self.definition(&[&path[..], rest].concat(), depth + 1);
        }
        let (last, above) = path.split_last()?;
        if last != "*" || above == module {
            return None;
        }
        let found = self.definition(&[above, &[name.to_string()]].concat(), depth + 1)?;
        // The module itself is the answer also for names that nobody defines.
        let defines = found.as_slice() != above || self.files[found].items.contains(name);
        defines.then_some(found)
    }
}

/// Returns the module of a file. `None` for tests and for the root of a program.
fn module(file: &str) -> Option<Module> {
    let mut module: Module = file.strip_suffix(".rs")?.split('/').map(String::from).collect();
    let is_program = file == "main.rs" || module.first().is_some_and(|folder| folder == "bin");
    let name = module.pop()?;
    if is_program || name.ends_with("tests") || module.iter().any(|folder| folder == "tests") {
        return None;
    }
    if name != "mod" && name != "lib" {
        module.push(name);
    }
    Some(module)
}

/// Returns whether one of the modules is the root, or the parent of the other one.
fn is_near(one: &[String], other: &[String]) -> bool {
    let is_parent = |parent: &[String], child: &[String]| {
        child.split_last().is_some_and(|(_, above)| above == parent)
    };
    one.is_empty() || other.is_empty() || is_parent(one, other) || is_parent(other, one)
}

/// Returns what a file imports for itself, and the paths of its code as its imports mean them.
fn used_paths(file: &File) -> Vec<Vec<String>> {
    let own = file.imports.iter().filter(|import| !import.is_public);
    let mut paths: Vec<Vec<String>> = own.map(|import| import.path.clone()).collect();
    for path in &file.paths {
        let imported = file.imports.iter().rev().find(|import| import.name == path[0]);
        paths.push(match imported {
            Some(import) => [&import.path[..], &path[1..]].concat(),
            None => path.clone(),
        });
    }
    paths
}
