package import AppleGateway
package import Ledger
package import Logging
package import Service
import ServiceLifecycle
package import Settings
import UnixSignals

/// Reads the configuration again on SIGHUP. The new configuration is checked whole, and taken or refused whole; the
/// security log says which. A change makes held receipts due.
package struct ConfigurationReloader: Service {
    private let settings: Settings
    private let holder: ConfigurationHolder
    private let apps: AppDirectory
    private let check: @Sendable (Configuration) async throws -> Void
    private let ledger: Ledger
    private let logger: Logger
    private let security: SecurityLog

    /// - Parameter check: throws for a configuration that this process cannot work with.
    package init(
        settings: Settings, holder: ConfigurationHolder, apps: AppDirectory, ledger: Ledger, logger: Logger,
        security: SecurityLog, check: @escaping @Sendable (Configuration) async throws -> Void
    ) {
        self.settings = settings
        self.holder = holder
        self.apps = apps
        self.check = check
        self.ledger = ledger
        self.logger = logger
        self.security = security
    }

    package func run() async throws {
        logger.info("configuration in force", metadata: ["configuration.sha256": "\(holder.current.hash)"])
        let signals = await UnixSignalsSequence(trapping: .sighup)
        for await _ in signals.cancelOnGracefulShutdown() { await reload() }
    }

    func reload() async {
        let old = holder.current.hash
        do {
            let configuration = try settings.loadConfiguration()
            guard configuration.userKeys?.fingerprint == holder.current.userKeys?.fingerprint else {
                throw ConfigurationError(key: "users.protect", problem: "names users by another key than this process")
            }
            // Checked before anything is changed, so that the configuration is taken whole or not at all.
            try await check(configuration)
            try await DatabasePurpose.agree(configuration, in: ledger.database)
            try await apps.update(configuration, ledger: ledger)
            holder.replace(configuration)
            logger.notice("configuration taken", metadata: ["configuration.sha256": "\(configuration.hash)"])
            security.note(
                .configuration(isTaken: true),
                ["configuration.sha256": "\(configuration.hash)", "configuration.sha256.before": "\(old)"])
        } catch {
            logger.error("configuration refused, the old one stays", metadata: LogKeys.error(error))
            security.note(.configuration(isTaken: false), ["configuration.sha256": "\(old)"])
        }
    }
}
