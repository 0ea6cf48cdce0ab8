package import Settings

/// How many connections of each sort a process may have open, so that its file descriptors never run out.
///
/// Dispatch traps where it finds no descriptor: for the timer of a new clock (`event_epoll.c`), and for the look at its
/// own threads that it takes whenever work waits for one (`queue.c`, `/proc/self/task/N/stat`).
package struct DescriptorShares: Sendable, Equatable {
    /// Connections of clients.
    package let clients: Int
    /// Connections to a port of its own for health and metrics.
    package let operations: Int
    /// Receipts in flight that need Apple; the process may have as many connections to each of Apple's hosts.
    package let appleInFlight: Int
    /// Webhooks on the way at a time.
    package let webhooks: Int

    /// An ingest's connections to the database for lists.
    package static let listConnections = 2
    private static let operationsMax = 64
    /// One in so many of the shared descriptors is for operations, while that is less than `operationsMax`.
    private static let operationsPart = 4
    /// Production and sandbox, of the App Store Server API and of verifyReceipt. Idle connections stay for a while.
    private static let appleHosts = 4
    /// The descriptors of a process of all three roles, without its loops and writers: input and output, timers and
    /// signals, listeners, and the connections that it always has. A third of them is a reserve for short use: files
    /// that are read, names that are looked up, a connection accepted beyond the bound.
    private static let fixed = 30
    /// Descriptors of a thread: an event loop sleeps on three; a connection to the database is a socket and a pipe that
    /// wakes its thread.
    private static let perThread = 3
    /// The fewest descriptors that must remain for all these connections: with two loops and two writers 64 files are
    /// enough.
    private static let sharedMin = 16

    /// The most files that a process with these settings can use; the roles as below.
    package static func most(_ settings: Settings, hasClients: Bool, callsApple: Bool, webhooks: Int = 0) -> Int {
        let shared =
            operationsMax + (hasClients ? HTTPLimits.connectionsMax : 0)
            + (callsApple ? appleHosts * settings.appleInFlight : 0) + webhooks
        return own(settings, hasClients) + max(shared, operationsMax * operationsPart)
    }

    /// - Parameters:
    ///   - files: how many files the process may open.
    ///   - hasClients: it is an ingest.
    ///   - callsApple: it is a worker.
    ///   - webhooks: how many webhooks a dispatcher may have on the way; 0: it is none.
    /// - Throws: where `files` are too few for anything; not retryable.
    package init(
        files: Int, _ settings: Settings, hasClients: Bool, callsApple: Bool, webhooks: Int = 0
    ) throws(ConfigurationError) {
        let own = Self.own(settings, hasClients)
        let shared = files - own
        guard shared >= Self.sharedMin else {
            throw ConfigurationError(
                key: "ulimit -n", problem: "is \(files): this process needs at least \(own + Self.sharedMin)")
        }
        operations = min(Self.operationsMax, shared / Self.operationsPart)
        let rest = shared - operations
        let forCalls = hasClients ? max(rest / 2, rest - HTTPLimits.connectionsMax) : rest
        let forWebhooks = callsApple ? min(forCalls / 2, forCalls - Self.appleHosts) : forCalls
        self.webhooks = min(webhooks, max(1, forWebhooks))
        let calls = callsApple ? min(Self.appleHosts * settings.appleInFlight, forCalls - self.webhooks) : 0
        appleInFlight = min(settings.appleInFlight, max(1, calls / Self.appleHosts))
        clients = hasClients ? min(HTTPLimits.connectionsMax, rest - calls - self.webhooks) : 0
    }

    private static func own(_ settings: Settings, _ hasClients: Bool) -> Int {
        let forLists = hasClients ? listConnections : 0
        return fixed + perThread * (settings.threads + settings.postgresWriters + forLists)
    }
}
