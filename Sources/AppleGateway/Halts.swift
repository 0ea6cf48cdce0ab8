package import AppStore
package import Ledger
package import Logging
import Service
import ServiceLifecycle
import Settings
import Synchronization

/// The halts in force. They are read from the database each second, so that no process asks Apple with a secret that
/// Apple has refused to another process.
package final class Halts: Service {
    package static let refreshInterval: Duration = .seconds(1)

    private let ledger: Ledger
    private let logger: Logger
    private let halts = Mutex<Set<Halt>>([])

    package init(ledger: Ledger, logger: Logger) {
        self.ledger = ledger
        self.logger = logger
    }

    package func run() async throws {
        while !Task.isShuttingDownGracefully, !Task.isCancelled {
            await refresh()
            try? await cancelWhenGracefulShutdown { try await Task.sleep(for: Self.refreshInterval) }
        }
    }

    package func refresh() async {
        // Without the database no receipt is judged either, so the last known halts stay.
        guard let rows = try? await ledger.run(Statements.listHalts, ()) else { return }
        halts.withLock { $0 = Set(rows) }
    }

    /// Whether an operator has paused the app: none of its receipts is judged.
    package func isPaused(_ appID: String) -> Bool {
        halts.withLock { $0.contains { $0.appID == appID && $0.service == Halt.everyService } }
    }

    package var haltedApps: Set<String> { halts.withLock { Set($0.map(\.appID)) } }

    package func halt(of service: ServiceCall.Service, for app: AppServices) -> Halt? {
        halts.withLock { halts in
            halts.first {
                $0.appID == app.configuration.id && $0.service == service.rawValue
                    && $0.credential == app.credentialHashes[service]
            }
        }
    }

    /// Whether this call may go out as a probe although the service is halted: once a minute, in one process.
    package func takesProbe(_ halt: Halt) async -> Bool {
        (try? await ledger.run(Statements.takeProbe, halt))?.isEmpty == false
    }

    /// Gives back a probe that was taken and not made, so that the next call may be the probe.
    package func returnProbe(_ halt: Halt) async {
        _ = try? await ledger.run(Statements.returnProbe, halt)
    }

    /// Halts a service because Apple refused our credentials: all processes stop asking with them.
    package func raise(_ call: ServiceCall, for app: AppServices) async {
        let halt = Halt(
            appID: app.configuration.id, service: call.service.rawValue, environment: call.environment.rawValue,
            credential: app.credentialHashes[call.service] ?? "", reason: "credentials_refused")
        halts.withLock { _ = $0.insert(halt) }
        if (try? await ledger.run(Statements.halt, halt))?.isEmpty == false {
            logger.error("halted: Apple refuses our credentials", metadata: LogKeys.halt(halt))
        }
    }

    /// Ends a halt because Apple accepted a probe.
    package func end(_ halt: Halt) async {
        guard (try? await ledger.run(Statements.endHalt, halt)) != nil else { return }
        halts.withLock { _ = $0.remove(halt) }
        logger.notice("halt ended", metadata: LogKeys.halt(halt))
    }
}

extension LogKeys {
    fileprivate static func halt(_ halt: Halt) -> Logger.Metadata {
        [
            "app.id": "\(halt.appID)", "apple.service": "\(halt.service)",
            "apple.environment": "\(halt.environment)", "halt.reason": "\(halt.reason)",
        ]
    }
}
