//! What the first row of a CSV file tells about its columns.

use super::shown::shown;
use csv::StringRecord;

/// Names of targets, in any case. `y` is one as the first column only: others may be coordinates.
const TARGETS: [&str; 4] = ["label", "labels", "target", "targets"];

/// Whether a first row has no number.
pub(super) fn is_header(first: &StringRecord) -> bool {
    first.iter().all(|field| field.parse::<f64>().is_err())
}

/// Checks that no name of a target stands among the first columns, the inputs, while the others
/// have none. The target would be an input in silence, and an input the target.
pub(super) fn check_target(header: &StringRecord, inputs: usize) -> Result<(), String> {
    let is_y = |name: &&str| name.eq_ignore_ascii_case("y");
    let has_target = header.iter().skip(inputs).any(|name| is_target(name) || is_y(&name));
    if has_target || header.len() <= inputs {
        return Ok(());
    }
    let mut names = header.iter().take(inputs);
    let target = names.find(|name| is_target(name)).or_else(|| header.get(0).filter(is_y));
    let Some(target) = target else { return Ok(()) };
    let place = match header.len() - inputs {
        1 => "the target is the last column".to_string(),
        targets => format!("the targets are the last {targets} columns"),
    };
    let target = shown(target);
    Err(format!(
        "names the column `{target}`, but {place}; move it to the end, or name the columns in \
         `columns`; if it is an input, rename it"
    ))
}

fn is_target(name: &str) -> bool {
    TARGETS.iter().any(|target| name.eq_ignore_ascii_case(target))
}

/// Whether a row counts its columns: 0, 1, 2 and so on.
pub(super) fn counts_columns(row: &StringRecord) -> bool {
    row.len() >= 3
        && row.iter().zip(0..).all(|(field, place): (_, usize)| field == place.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_among_the_inputs_is_named() {
        let check = |names: &str, inputs| {
            check_target(&StringRecord::from(names.split(',').collect::<Vec<_>>()), inputs)
        };
        for names in ["label,a,b", "a,Target,b", "TARGETS,a,b", "Y,a,b"] {
            let error = check(names, 2).unwrap_err();
            assert!(error.contains("but the target is the last column; move it"), "{error}");
        }
        let error = check("a,labels,b,c", 2).unwrap_err();
        let expected = "names the column `labels`, but the targets are the last 2 columns; ";
        assert!(error.starts_with(expected), "{error}");
        for names in
            ["a,b,label", "label,a,target", "y,a,label", "label,a,y", "a,b,c", "x,y,z", "class,a,b"]
        {
            assert_eq!(check(names, 2), Ok(()), "{names}");
        }
        // The error of the rows counts them.
        assert_eq!(check("label,a", 2), Ok(()));
    }

    #[test]
    fn a_row_that_counts_has_three_columns_and_no_other_digits() {
        let counts = |row: &str| counts_columns(&row.split(',').collect::<Vec<_>>().into());
        assert!(counts("0,1,2") && counts("0,1,2,3,4,5,6,7,8,9,10"));
        assert!(!counts("0,1") && !counts("0.0,1,2") && !counts("00,1,2") && !counts("1,2,3"));
    }
}
