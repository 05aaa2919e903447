//! Which axes of a mesh cut which dimensions of an array.

use std::fmt;

/// For each dimension of an array the mesh axes that cut it, as `jax.sharding.PartitionSpec`.
///
/// Specs are made of tuples with an entry for each dimension: an axis name, several of them as an array, or `None`. A name
/// by itself is the spec's only entry. Dimensions beyond the last entry are not cut, and `()` cuts none.
///
/// ```
/// use spmd_run::mesh::PartitionSpec;
///
/// assert_eq!(PartitionSpec::from(("data", None)).to_string(), "P('data', None)");
/// assert_eq!(PartitionSpec::from((["data", "model"],)).to_string(), "P(('data', 'model'),)");
/// assert_eq!(PartitionSpec::from("data"), PartitionSpec::from(("data",)));
/// assert_eq!(PartitionSpec::from(()).to_string(), "P()");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartitionSpec(Vec<Cut>);

/// The mesh axes that cut one dimension, the outermost first; none where it is not cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cut(pub Vec<String>);

impl PartitionSpec {
    /// A spec with these entries.
    pub fn new(cuts: Vec<Cut>) -> PartitionSpec {
        PartitionSpec(cuts)
    }

    /// The entries.
    pub fn cuts(&self) -> &[Cut] {
        &self.0
    }

    /// Every axis that is named, in order.
    pub fn axes(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|cut| cut.0.iter().map(String::as_str))
    }
}

impl From<&str> for Cut {
    fn from(axis: &str) -> Cut {
        Cut(vec![axis.to_owned()])
    }
}

impl From<Option<&str>> for Cut {
    fn from(axis: Option<&str>) -> Cut {
        axis.map(Cut::from).unwrap_or_default()
    }
}

impl<const N: usize> From<[&str; N]> for Cut {
    fn from(axes: [&str; N]) -> Cut {
        Cut(axes.map(str::to_owned).to_vec())
    }
}

impl From<()> for PartitionSpec {
    fn from((): ()) -> PartitionSpec {
        PartitionSpec::default()
    }
}

impl From<&str> for PartitionSpec {
    fn from(axis: &str) -> PartitionSpec {
        PartitionSpec(vec![axis.into()])
    }
}

impl From<&PartitionSpec> for PartitionSpec {
    fn from(spec: &PartitionSpec) -> PartitionSpec {
        spec.clone()
    }
}

macro_rules! from_tuple {
    ($($name:ident)+) => {
        impl<$($name: Into<Cut>),+> From<($($name,)+)> for PartitionSpec {
            #[allow(non_snake_case, reason = "the values have the names of their types")]
            fn from(($($name,)+): ($($name,)+)) -> PartitionSpec {
                PartitionSpec(vec![$($name.into()),+])
            }
        }
    };
}

from_tuple!(A);
from_tuple!(A B);
from_tuple!(A B C);
from_tuple!(A B C D);
from_tuple!(A B C D E);
from_tuple!(A B C D E F);

/// As JAX prints it: `P('data', None, ('x', 'y'))`.
impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.0.iter().map(Cut::to_string).collect();
        let comma = if entries.len() == 1 { "," } else { "" };
        write!(f, "P({}{comma})", entries.join(", "))
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [] => f.write_str("None"),
            [axis] => write!(f, "'{axis}'"),
            axes => write!(f, "({})", axes.iter().map(|axis| format!("'{axis}'")).collect::<Vec<_>>().join(", ")),
        }
    }
}
