//! Which ranks form a group, as the variable `NCCL_TESTS_SPLIT` of nccl-tests says it.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rule that divides the ranks of a job into groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Split {
    /// One group of all ranks.
    Whole,
    /// Rank r belongs to group r mod this.
    Mod(u32),
    /// Rank r belongs to group r div this.
    Div(u32),
    /// The groups themselves.
    Groups(Vec<Vec<u32>>),
}

/// Text that names no [`Split`].
#[derive(Debug, thiserror::Error)]
#[error("write MOD:K or DIV:K with K above 0, or the groups themselves as in 0,1/2,3")]
pub struct ParseSplitError;

/// A split that does not fit the ranks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SplitError {
    #[error("{split} makes {groups} groups, the job has {ranks} ranks")]
    TooManyGroups { split: Split, groups: usize, ranks: u32 },
    #[error("{split} names rank {rank}, the job has ranks 0 to {}", ranks - 1)]
    UnknownRank { split: Split, rank: u32, ranks: u32 },
    #[error("{split} names rank {rank} twice")]
    Twice { split: Split, rank: u32 },
    #[error("{split} leaves rank {rank} out: every rank belongs to a group")]
    LeftOut { split: Split, rank: u32 },
    #[error("{split} makes groups of {first} and of {other} ranks: all need the same size")]
    Uneven { split: Split, first: usize, other: usize },
}

impl FromStr for Split {
    type Err = ParseSplitError;

    fn from_str(text: &str) -> Result<Split, ParseSplitError> {
        let number = |rest: &str| {
            let rest = rest.trim_start_matches([':', ' ']);
            rest.parse().ok().filter(|&number: &u32| number > 0).ok_or(ParseSplitError)
        };
        let rule = text.get(..3).unwrap_or_default().to_ascii_uppercase();
        match rule.as_str() {
            "MOD" => Ok(Split::Mod(number(&text[3..])?)),
            "DIV" => Ok(Split::Div(number(&text[3..])?)),
            _ => {
                let ranks = |group: &str| group.split(',').map(|rank| rank.trim().parse()).collect();
                let groups: Result<_, _> = text.split('/').map(ranks).collect();
                groups.map(Split::Groups).map_err(|_| ParseSplitError)
            }
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Split::Whole => f.write_str("all"),
            Split::Mod(number) => write!(f, "MOD:{number}"),
            Split::Div(number) => write!(f, "DIV:{number}"),
            Split::Groups(groups) => {
                let group = |group: &Vec<u32>| group.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                f.write_str(&groups.iter().map(group).collect::<Vec<_>>().join("/"))
            }
        }
    }
}

impl Split {
    /// The groups of `ranks` ranks, each at least one: all of the same size, and every rank in one of them.
    pub fn groups(&self, ranks: u32) -> Result<Vec<Vec<u32>>, SplitError> {
        let split = || self.clone();
        let by_color = |groups: u32, color: &dyn Fn(u32) -> u32| {
            if groups > ranks {
                return Err(SplitError::TooManyGroups { split: split(), groups: groups as usize, ranks });
            }
            let mut members = vec![Vec::new(); groups as usize];
            (0..ranks).for_each(|rank| members[color(rank) as usize].push(rank));
            Ok(members)
        };
        let groups = match self {
            Split::Whole => vec![(0..ranks).collect()],
            Split::Mod(number) => by_color(*number, &|rank| rank % number)?,
            Split::Div(number) => by_color(ranks.div_ceil(*number), &|rank| rank / number)?,
            Split::Groups(groups) if groups.len() > ranks as usize => {
                return Err(SplitError::TooManyGroups { split: split(), groups: groups.len(), ranks });
            }
            Split::Groups(groups) => groups.clone(),
        };
        let mut seen = HashSet::new();
        for &rank in groups.iter().flatten() {
            if rank >= ranks {
                return Err(SplitError::UnknownRank { split: split(), rank, ranks });
            }
            if !seen.insert(rank) {
                return Err(SplitError::Twice { split: split(), rank });
            }
        }
        if let Some(rank) = (0..ranks).find(|rank| !seen.contains(rank)) {
            return Err(SplitError::LeftOut { split: split(), rank });
        }
        let first = groups.first().map_or(0, Vec::len);
        match groups.iter().map(Vec::len).find(|&size| size != first) {
            Some(other) => Err(SplitError::Uneven { split: split(), first, other }),
            None => Ok(groups),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(text: &str, ranks: u32) -> Result<Vec<Vec<u32>>, String> {
        let split: Split = text.parse().map_err(|error: ParseSplitError| error.to_string())?;
        split.groups(ranks).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_color_ranks_as_nccl_tests_does() {
        assert_eq!(groups("MOD:2", 4).unwrap(), [[0, 2], [1, 3]]);
        assert_eq!(groups("div 2", 4).unwrap(), [[0, 1], [2, 3]]);
        assert_eq!(groups("DIV4", 4).unwrap(), [[0, 1, 2, 3]]);
        assert_eq!(groups("3,0/1,2", 4).unwrap(), [[3, 0], [1, 2]]);
        assert_eq!(Split::Whole.groups(3).unwrap(), [[0, 1, 2]]);
    }

    #[test]
    fn what_is_no_split() {
        let all = ["", "MOD", "MOD:0", "mod:-1", "DIV:x", "0,1/", "0;1", "é", "1,4294967296"];
        for text in all {
            assert!(groups(text, 4).unwrap_err().starts_with("write MOD:K"), "{text}");
        }
        let message = |text| groups(text, 4).unwrap_err();
        assert_eq!(message("MOD:8"), "MOD:8 makes 8 groups, the job has 4 ranks");
        assert_eq!(message("0/1/2/3/3"), "0/1/2/3/3 makes 5 groups, the job has 4 ranks");
        assert_eq!(message("0,1/2,4"), "0,1/2,4 names rank 4, the job has ranks 0 to 3");
        assert_eq!(message("0,1/1,2"), "0,1/1,2 names rank 1 twice");
        assert_eq!(message("0,1"), "0,1 leaves rank 2 out: every rank belongs to a group");
        assert_eq!(message("MOD:3"), "MOD:3 makes groups of 2 and of 1 ranks: all need the same size");
        assert_eq!(message("DIV:3"), "DIV:3 makes groups of 3 and of 1 ranks: all need the same size");
    }
}
