import ArgumentParser
import Commands
import Foundation
import NIOCore
import NIOPosix
import Settings

extension Makegood {
    /// The argument parser's own `main()` with two changes. It sets the number of event loops. An unreadable command
    /// line ends `inspect` with 2, its "no judgement", not with the parser's 64: scripts rely on its three exit codes.
    static func main() async {
        do {
            var command = try parseAsRoot()
            // A service has as many event loops as its settings say; a tool has one for each core. An unreadable
            // setting is refused later, with all other settings.
            if command is any ServiceCommand {
                NIOSingletons.groupLoopCountSuggestion = (try? Settings.threads()) ?? Settings.threadsDefault
            }
            if var asynchronous = command as? any AsyncParsableCommand {
                try await asynchronous.run()
            } else {
                try command.run()
            }
        } catch {
            let isInspect = CommandLine.arguments.dropFirst().first == InspectCommand.configuration.commandName
            if isInspect, exitCode(for: error) == .validationFailure {
                Terminal.tell(fullMessage(for: error))
                Foundation.exit(ExitCode.unusableInput.rawValue)
            }
            exit(withError: error)
        }
    }
}
