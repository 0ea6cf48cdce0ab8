import ArgumentParser

struct IngestCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "ingest", abstract: "Accept receipts over HTTP, store them, and ring for the workers.")

    func run() async throws { try await Deployment.run([.ingest]) }
}

struct WorkerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "worker", abstract: "Verify receipts and write grants. Start as many as you like.")

    func run() async throws { try await Deployment.run([.worker]) }
}

struct SchedulerCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "scheduler", abstract: "Queue again what was forgotten, and keep the books. Start one or more.")

    func run() async throws { try await Deployment.run([.scheduler]) }
}

struct AllCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "all", abstract: "Ingest, worker and scheduler in one process, for small installations.")

    func run() async throws { try await Deployment.run(Deployment.Role.allCases) }
}
