import ArgumentParser
import Support

/// `makegood reasons`: prints the meaning of each reason, and the remedy.
struct ReasonsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "reasons",
        abstract: "Print what each reason of an answer means, what to do, and what the player reads, in Markdown.")

    func run() { print(ReasonPage.text, terminator: "") }
}
