//! The C tests: programs written against libibverbs-dev's headers.

use crate::Options;
use crate::report::Suite;

pub fn plain(suite: &mut Suite, _: &Options) {
    suite.fail("C tests", "not there yet");
}

pub fn sanitized(suite: &mut Suite, _: &Options) {
    suite.fail("C tests", "not there yet");
}
