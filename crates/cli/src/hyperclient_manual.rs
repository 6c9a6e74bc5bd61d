//! The man pages of `libhyperclient/hyperclient_compat.h`. The synopsis of each function is the header's own.

use std::io;

use crate::c_manual::{Functions, Library};
use crate::manual::Page;

/// The header for C.
pub const HEADER: &str = include_str!("../../group-abi/include/libhyperclient/hyperclient_compat.h");

/// The header for C++.
pub const CPP_HEADER: &str = include_str!("../../group-abi/include/libhyperclient/hyperclient.h");

#[rustfmt::skip]
const PAGES: &[Functions] = &[
    Functions {
        names: &["compat_hyperclient_connect", "compat_hyperclient_destory", "compat_hyperclient_destroy"],
        about: "connect to a chain of replicas, and leave it",
        text: "\
compat_hyperclient_connect connects to the replica that was started last (softrnic-group-serve(1)), by its host and \
TCP port. device_name is null or empty for the first device. Several clients may use a chain at once.

The buffer is what gWRITEs send. It may be memory that can only be read. It must stay mapped until the client is \
destroyed. compat_hyperclient_destory is another name of compat_hyperclient_destroy.",
        errors: &[
            ("ECONNREFUSED", "nothing listens there, or a replica refuses: a region of another size, another version"),
            ("EFAULT", "the buffer or the server's name is null; the buffer is not there"),
            ("EINVAL", "no such client; no address; another port than 1; 0 bytes; a chain of more than 64 replicas"),
            ("ENODEV, ENOSYS", "no such device, or no verbs library"),
            ("EOPNOTSUPP", "the device has no managed queues"),
        ],
    },
    Functions {
        names: &["compat_hyperclient_do_operations", "compat_hyperclient_use_notify"],
        about: "do operations on the memory of all replicas",
        text: "\
Operations are begun in the order of the array, at most op_window_size at a time; a window above 2000 is 2000, which \
is said on standard error. Operations that touch the same bytes wait for each other, unless both are gWRITEs, so the \
window changes no outcome. The function returns when all replicas have executed all of them: the microseconds that \
it took, or COMPAT_HYPERCLIENT_FAILED.

All operations are checked before the first one is sent.

compat_hyperclient_use_notify chooses whether the calling thread sleeps meanwhile or polls.",
        errors: &[
            ("EBADF", "the process is the child of a fork(2)"),
            ("EFAULT", "the array is null"),
            (
                "EINVAL",
                "no such client; a window of 0; a type that is none; a size of 0; bytes outside the region or the \
                 buffer; a gMEMCPY whose source and destination overlap; a gCAS that is not on 8 bytes, or whose map \
                 names a replica that does not exist",
            ),
            ("EIO", "the group has ended; the text names the hop"),
        ],
    },
    Functions {
        names: &["compat_hyperclient_result", "compat_hyperclient_undo"],
        about: "what a gCAS found, and its way back",
        text: "\
compat_hyperclient_result gives what each replica had before a gCAS of the last call of \
compat_hyperclient_do_operations(3), and returns the number of replicas. The value is 0 where the gCAS was not executed.

compat_hyperclient_undo makes the gCAS that takes one back on those replicas that swapped.",
        errors: &[
            ("EFAULT", "a null pointer"),
            ("EINVAL", "no such client; the operation is no gCAS"),
        ],
    },
    Functions {
        names: &[
            "compat_hyperclient_send_print_buffer",
            "compat_hyperclient_replicas",
            "compat_hyperclient_region_size",
            "compat_hyperclient_error",
        ],
        about: "ask about a chain",
        text: "\
compat_hyperclient_send_print_buffer has all replicas write a part of their regions to their standard output. \
compat_hyperclient_replicas returns how many there are, compat_hyperclient_region_size the bytes of the region of \
each.

compat_hyperclient_error returns why the last call of this thread that failed did. The text stays until another call \
of the thread fails.",
        errors: &[
            ("EINVAL", "no such client; bytes outside the region"),
            ("EIO", "the group has ended; the text names the hop"),
        ],
    },
];

const DESCRIPTION: &str = "\
libhyperclient.so does group operations: a client writes, copies, compares and swaps in the memory of all replicas of \
a chain, and no program of a replica takes part (HyperLoop, SIGCOMM 2018). softrnic-group-serve(1) is a replica.

libhyperclient/hyperclient_compat.h has the functions for C. libhyperclient/hyperclient.h has the class \
hyperclient::Hyperclient for C++14, inline over them: its constructor, doOperations, result and useNotify throw \
std::system_error with the errno, sendPrintBuffer returns false. The buffer_address of a gWRITE is that of the \
constructor; another one is EINVAL.

The four operations are gWRITE (bytes of the client's buffer to the same offset of every region), gMEMCPY (within \
each region), gCAS (compare and swap 8 bytes on the replicas that the map names) and gFLUSH (what came before is in \
each region).

Names and structures are those of the report on HyperLoop's first re-implementation; result, undo, use_notify, \
replicas, region_size and error are this library's own. The library uses the verbs library that the process has, or \
else the libibverbs.so.1 that the loader finds; that must be softrnic's.

The child of a fork(2) has no clients: its calls are EBADF.";

const LIBRARY: Library = Library {
    header: HEADER,
    include: "libhyperclient/hyperclient_compat.h",
    link: "Link with -lhyperclient (hyperclient.pc).",
    manual: "group operations",
    failed: "A call that fails returns -1, a null pointer, or COMPAT_HYPERCLIENT_FAILED, and sets errno.",
    overview: ("hyperclient", "group operations along a chain of replicas", DESCRIPTION),
    beside: ("softrnic-group-serve", "1"),
    pages: PAGES,
    common: None,
};

/// All pages.
pub fn pages() -> io::Result<Vec<Page>> {
    LIBRARY.all_pages()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_page() {
        let described = LIBRARY.described();
        assert_eq!(LIBRARY.declared("compat_"), described);
        assert_eq!(described.len(), 11);
        for name in described {
            let text = LIBRARY.declaration(name).unwrap();
            assert!(text.contains(&format!("{name}(")) && text.ends_with(");") && !text.contains("*/"), "{text}");
        }
    }
}
