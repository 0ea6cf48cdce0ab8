import Foundation
import Glibc

/// How many files this process may open (RLIMIT_NOFILE).
package enum OpenFiles {
    /// The limit, after the soft limit was raised as far as is useful. The soft limit is low by default, 1,024, for the
    /// sake of programs that use select(2); nothing here does.
    package static func limit(raisedTo most: Int) throws -> Int {
        let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
        var limit = rlimit()
        guard getrlimit(resource, &limit) == 0 else { throw POSIXError(.init(rawValue: errno) ?? .EINVAL) }
        let raised = min(limit.rlim_max, rlim_t(most))
        if limit.rlim_cur < raised {
            limit.rlim_cur = raised
            guard setrlimit(resource, &limit) == 0 else { throw POSIXError(.init(rawValue: errno) ?? .EPERM) }
        }
        return Int(clamping: limit.rlim_cur)
    }
}
