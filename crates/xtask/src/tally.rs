//! The results of test cases.

use offramp_testbed::failure::{Failure, Result};
use std::time::Instant;

/// The option that selects cases, common to all commands that run cases.
#[derive(Clone, Debug, clap::Args)]
pub struct Only {
    /// Run only cases whose name contains FILTER
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
}

impl Only {
    /// Returns whether a case is selected.
    pub fn has(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Returns whether all cases are selected.
    pub fn has_all(&self) -> bool {
        self.only.is_none()
    }
}

/// The results of cases. Each result is printed as soon as it is available.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u32,
    failed: u32,
    not_possible: u32,
}

impl Tally {
    /// Prints the result of a case.
    ///
    /// # Errors
    /// Returns [`Failure::Stopped`] if the run was stopped, which is not a result.
    pub fn count(&mut self, name: &str, began: Instant, result: Result<()>) -> Result<()> {
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("passed        {name} ({seconds:.1} s)");
            }
            Err(Failure::NotPossible(why)) => {
                self.not_possible += 1;
                println!("not possible  {name}: {why}");
            }
            Err(Failure::Failed(why)) => {
                self.failed += 1;
                println!("FAILED        {name}: {why}");
            }
            Err(Failure::Stopped) => return Err(Failure::Stopped),
        }
        Ok(())
    }

    /// Prints the totals. Returns whether at least one case passed and no case failed.
    pub fn end(&self, what: &str) -> bool {
        println!("{what}: {} passed, {} failed, {} not possible", self.passed, self.failed, self.not_possible);
        self.passed > 0 && self.failed == 0
    }
}
