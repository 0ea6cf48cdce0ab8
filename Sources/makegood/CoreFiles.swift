import Foundation
import Glibc

/// The file that the kernel writes when a process dies of a signal: the whole memory, with proofs, keys and passwords
/// (core(5)).
enum CoreFiles {
    /// Forbids core files of this process and its children; neither can allow them again. Kubernetes has no setting for
    /// it.
    static func forbid() throws {
        var none = rlimit(rlim_cur: 0, rlim_max: 0)
        guard setrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &none) == 0 else {
            throw POSIXError(.init(rawValue: errno) ?? .EPERM)
        }
    }
}
