import ArgumentParser

/// `makegood events`.
struct EventsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "events", abstract: "Have events sent to an endpoint again, or receive them while you develop.",
        subcommands: [Replay.self, Replays.self, Listen.self])
}
