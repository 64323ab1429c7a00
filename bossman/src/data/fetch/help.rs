//! LibreOffice's help: the same HTML files in each language, and in them paragraphs with the same ids.

use super::files;
use super::prose::{by_sentence, single_spaced, untagged, Pair};
use crate::BossManError;
use std::collections::BTreeMap;
use std::path::Path;

const TAGS: [&str; 12] = ["p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th", "div", "span"];

pub(super) fn pairs(from: &Path) -> Result<Vec<Pair>, BossManError> {
    let [english, german] = ["en-US", "de"].map(|language| from.join("usr/share/libreoffice/help").join(language));
    let mut pairs = Vec::new();
    for path in files::ending(&english, ".html")? {
        let other = path.strip_prefix(&english).map_or_else(|_| german.clone(), |inside| german.join(inside));
        if other.is_file() {
            pairs.extend(together(&files::text(&path)?, &files::text(&other)?));
        }
    }
    Ok(pairs)
}

fn together(english: &str, german: &str) -> Vec<Pair> {
    let german = paragraphs(german);
    let both = paragraphs(english).into_iter().filter_map(|(id, text)| Some((text, german.get(id)?)));
    both.flat_map(|(one, other)| by_sentence(&one, other)).collect()
}

/// By their ids; of several with one id the first.
fn paragraphs(html: &str) -> BTreeMap<&str, String> {
    let mut found = BTreeMap::new();
    let mut rest = html;
    while let Some((_, after)) = rest.split_once('<') {
        rest = after;
        let Some((tag, content)) = after.split_once('>') else { break };
        let name = tag.split_whitespace().next().unwrap_or_default();
        let Some(id) = id(tag).filter(|_| TAGS.contains(&name)) else { continue };
        let Some((inside, after)) = content.split_once(&format!("</{name}>")) else { continue };
        let text = single_spaced(&unescaped(&untagged(inside)));
        if !text.is_empty() {
            found.entry(id).or_insert(text);
        }
        rest = after;
    }
    found
}

/// That of a paragraph or a heading.
fn id(tag: &str) -> Option<&str> {
    let (_, value) = tag.split_once(" id=\"")?;
    let (id, _) = value.split_once('"')?;
    ["par_id", "hd_id"].iter().any(|start| id.starts_with(start)).then_some(id)
}

/// The pages have no other entities.
fn unescaped(text: &str) -> String {
    let quotes = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&nbsp;", " ");
    quotes.replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_found_by_their_ids() {
        let page = "<html><h1 id=\"hd_id1\"><b>Cut</b> &amp; paste</h1>\n<p id=\"other\">no</p><p class=\"a\" id=\"par_id2\">\n\
                    Choose <span id=\"par_id9\">View &gt;\n Zoom</span>. &amp;lt;</p><p id=\"par_id2\">again</p><p id=\"par_id3\"> </p>";
        let expected = [("hd_id1", "Cut & paste"), ("par_id2", "Choose View > Zoom. &lt;")];
        assert_eq!(paragraphs(page), expected.map(|(id, text)| (id, text.to_string())).into());
    }

    #[test]
    fn a_page_and_its_translation_give_sentences() {
        let english = "<p id=\"par_id1\">Click here. Drag it.</p><p id=\"par_id2\">Only here.</p>";
        let german = "<p id=\"par_id1\">Klicken Sie hier. Ziehen Sie es.</p>";
        let expected = [("Click here.", "Klicken Sie hier."), ("Drag it.", "Ziehen Sie es.")];
        assert_eq!(together(english, german), expected.map(|(en, de)| (en.to_string(), de.to_string())));
    }

    #[test]
    fn broken_pages_give_nothing_and_do_no_harm() {
        for page in [
            "",
            "<",
            "<>",
            "<p id=\"par_id1",
            "<p id=\"par_id1\"",
            "<p id=\"par_id1\">",
            "<p id=\"par_id1\">a</q>",
            "< >é",
        ] {
            assert!(paragraphs(page).is_empty(), "{page}");
        }
        let page = "<p id=\"par_id1\">open <p id=\"par_id2\">a</p>";
        assert_eq!(paragraphs(page), [("par_id1", "open a".to_string())].into());
    }

    #[test]
    fn pages_without_a_translation_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let help = folder.path().join("usr/share/libreoffice/help");
        assert!(pairs(folder.path()).is_err());
        for (name, text) in [("en-US/text/a.html", "A b c."), ("de/text/a.html", "D e f."), ("en-US/b.html", "No.")] {
            let path = help.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("<p id=\"par_id1\">{text}</p>")).unwrap();
        }
        assert_eq!(pairs(folder.path()).unwrap(), [("A b c.".to_string(), "D e f.".to_string())]);
    }
}
