import ArgumentParser
import Settings

/// The command line: commands, configuration, wiring. The article Reconciliation describes the services.
@main
struct Makegood: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "makegood",
        abstract: "Makes sure no paid App Store purchase is lost, doubled, or given to the wrong account.",
        discussion: """
            Services take their settings from the environment (MAKEGOOD_POSTGRES_URL, MAKEGOOD_AMQP_URL, \
            MAKEGOOD_CONFIG, …); deploy/configuration.md lists them all.
            """,
        version: Version.current,
        subcommands: [
            InitCommand.self, IngestCommand.self, WorkerCommand.self, DispatcherCommand.self, SchedulerCommand.self,
            AllCommand.self,
            MigrateCommand.self, RolesCommand.self, CheckCommand.self, DoctorCommand.self, QueueCommand.self,
            ExplainCommand.self, ReasonsCommand.self, AppleCommand.self,
            SupportCommand.self, NotificationsCommand.self, SweepCommand.self, UsersCommand.self, EndpointsCommand.self,
            EventsCommand.self,
            CatalogCommand.self,
            ImportCommand.self,
            ShadowCommand.self, ReconcileCommand.self, ReportCommand.self, DifferencesCommand.self,
            SimulateCommand.self, InspectCommand.self,
            BenchCommand.self,
            LoadCommand.self,
        ])
}
