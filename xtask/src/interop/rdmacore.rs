//! The Python tests of a newer rdma-core than the distribution's. None may fail.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rdmacore::{self, Missing};
use crate::report::{Outcome, Suite};
use crate::{Options, root};

use super::pyverbs::{HugePages, MODULES, Ran, Runner};
use super::sandbox::{Sandbox, copy};
use super::{DEVICE, Mode};

/// Parts of the reasons with which a test may leave itself out: things that the machine lacks, and raw Ethernet frames,
/// which the device lacks.
const LEFT_OUT: &[&str] = &["/dev/dri/", "dmabuf", "There are no huge pages", "Raw Packet QP", "RAW QP"];

/// Copy the libraries, pyverbs and the tests to where the ordinary user can read them, as that user may not be able to
/// read the checkout. The modules of vendors' adapters are not built, and their tests would not load.
const COPY: &str = r#"
set -eu
mkdir -p "$2/tests" "$2/lib"
cp -L "$1"/build/lib/libibverbs.so.1 "$1"/build/lib/librdmacm.so.1 "$2/lib"
cp -RL "$1/build/python" "$2"
cp "$1"/rdma-core/tests/*.py "$2/tests"
rm -f "$2"/tests/test_mlx5* "$2"/tests/test_efa* "$2"/tests/test_cuda*
chmod -R a+rX "$2"
"#;

pub fn rdmacore(suite: &mut Suite, options: &Options) {
    let source = match rdmacore::built() {
        Ok(source) => source,
        Err(Missing::Offline(why)) => {
            return suite.skip("a newer rdma-core's tests", format!("the source package could not be fetched: {why}"));
        }
        Err(Missing::Broken(why)) => return suite.fail("a newer rdma-core's tests", why),
    };
    let Some(sandbox) = Mode::Every.sandbox(suite) else {
        return;
    };
    let folder = match lay_out(&sandbox, &source) {
        Ok(folder) => folder,
        Err(e) => return suite.fail("the suite's files", e),
    };
    let variables = vec![("PYTHONPATH", folder.join("python")), ("LD_LIBRARY_PATH", folder.join("lib"))];
    let runner = Runner { sandbox: &sandbox, folder, suite: "rdmacore", variables, iwarp: None };
    link_show(suite, &sandbox);
    let _pages = HugePages::reserve();
    for module in MODULES {
        let names = match runner.list(module) {
            Ok(names) => names,
            Err(e) => {
                suite.fail(*module, e);
                continue;
            }
        };
        let names: Vec<String> = names.into_iter().filter(|name| options.wants(name)).collect();
        for Ran { row, log, took } in runner.run(module, &names) {
            let outcome = match row.outcome.clone() {
                Outcome::Skipped(why) if !LEFT_OUT.iter().any(|part| why.contains(part)) => {
                    Outcome::Failed(format!("left itself out: {why}"))
                }
                outcome => outcome,
            };
            suite.push_timed(row.name(), outcome, Some(log), took);
        }
    }
}

/// Install a command that many tests ask for the name of the network interface, without which they fail.
fn link_show(suite: &mut Suite, sandbox: &Sandbox) {
    super::check_one(suite, sandbox, "rdma", &["link", "show", "-j"], |out| {
        (out.contains(DEVICE), format!("{DEVICE} is not listed"))
    });
}

fn lay_out(sandbox: &Sandbox, source: &Path) -> Result<PathBuf, String> {
    let folder = sandbox.dir().join("rdmacore");
    let done = Command::new("sh").args(["-c", COPY, "sh"]).args([source, &folder]).output();
    match done {
        Ok(out) if out.status.success() => {}
        Ok(out) => return Err(format!("copying the tests: {}", String::from_utf8_lossy(&out.stderr))),
        Err(e) => return Err(format!("copying the tests: {e}")),
    }
    copy(&root().join("interop/pyverbs/run.py"), &folder.join("run.py"))?;
    copy(&root().join("interop/rdmacore/vendors.py"), &folder.join("python/vendors.py"))?;
    Ok(folder)
}
