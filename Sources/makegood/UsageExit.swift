import ArgumentParser
import Commands
import Foundation
import NIOCore
import NIOPosix
import Settings

extension Makegood {
    /// The argument parser's own `main()`, but for the event loops and one more thing: a command line that cannot be read
    /// ends `inspect` with its own "no judgement", 2, not with the parser's 64. Scripts rely on its three exit codes.
    static func main() async {
        do {
            var command = try parseAsRoot()
            // A service has as many event loops as its settings say; a tool as many as there are cores. What cannot be
            // read is refused with all other settings.
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
