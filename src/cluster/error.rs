use super::Scheduler;

/// Why a place in a job cannot be read from the environment.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Only some of the variables that go together are set.
    #[error("{scheduler}: {present}={value} is set but {absent} is not{advice}")]
    Missing {
        /// Whose variables they are.
        scheduler: Scheduler,
        /// A variable that is set.
        present: &'static str,
        /// Its value.
        value: String,
        /// The one that is missing.
        absent: &'static str,
        /// What to do, after a colon.
        advice: &'static str,
    },
    /// A value that cannot be read.
    #[error("{name}={value}: {reason}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two variables that cannot both be true.
    #[error("{scheduler}: {first}={first_value} and {second}={second_value} contradict each other: {rule}")]
    Contradiction {
        /// Whose variables they are.
        scheduler: Scheduler,
        /// One variable.
        first: &'static str,
        /// Its value.
        first_value: String,
        /// The other.
        second: &'static str,
        /// Its value.
        second_value: String,
        /// What holds when all is well.
        rule: &'static str,
    },
    /// The metadata server of a cloud machine says nothing useful.
    #[error("the metadata server of this machine, {address}: {reason}; TPU_SKIP_MDS_QUERY=1 leaves it alone")]
    Metadata {
        /// Where it was looked for.
        address: String,
        /// What went wrong.
        reason: String,
    },
}
