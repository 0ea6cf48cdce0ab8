import ArgumentParser

/// A command that serves until it is told to end.
protocol ServiceCommand: AsyncParsableCommand {
    static var roles: [Deployment.Role] { get }
}

extension ServiceCommand {
    func run() async throws { try await Deployment.run(Self.roles) }
}

struct IngestCommand: ServiceCommand {
    static let configuration = CommandConfiguration(
        commandName: "ingest", abstract: "Accept receipts over HTTP, store them, and publish their ids to the workers.")
    static let roles = [Deployment.Role.ingest]
}

struct WorkerCommand: ServiceCommand {
    static let configuration = CommandConfiguration(
        commandName: "worker", abstract: "Verify receipts and write grants. Start as many as you like.")
    static let roles = [Deployment.Role.worker]
}

struct DispatcherCommand: ServiceCommand {
    static let configuration = CommandConfiguration(
        commandName: "dispatcher",
        abstract: "Send the events of apps to their endpoints. Start as many as you like.")
    static let roles = [Deployment.Role.dispatcher]
}

struct SchedulerCommand: ServiceCommand {
    static let configuration = CommandConfiguration(
        commandName: "scheduler",
        abstract: "Queue again what was forgotten, and check the invariants. Start one or more.")
    static let roles = [Deployment.Role.scheduler]
}

struct AllCommand: ServiceCommand {
    static let configuration = CommandConfiguration(
        commandName: "all",
        abstract: "Ingest, worker, dispatcher and scheduler in one process, for small installations.")
    static let roles = Deployment.Role.allCases
}
