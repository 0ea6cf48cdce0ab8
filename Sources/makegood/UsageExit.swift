import ArgumentParser
import Foundation

extension Makegood {
    /// The argument parser's own `main()`, but for one thing: a command line that cannot be read ends `inspect` with
    /// its own "no judgement", 2, not with the parser's 64. Scripts rely on its three exit codes.
    static func main() async {
        do {
            var command = try await asyncParseAsRoot()
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
