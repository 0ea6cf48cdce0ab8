import ArgumentParser
import Encoding
import Foundation

struct DoctorCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "doctor", abstract: "Can Makegood run here? One line for each thing that must be right.",
        discussion: """
            Looks at the libraries, the settings, the file with the apps, who else may touch the files, the database, \
            the broker and the clock with the settings of a service. Changes nothing. \
            Exit code 0: nothing fails; 1: something does.
            """)

    @Flag(help: "Print JSON.")
    var json = false

    private struct Report: Encodable {
        let findings: [Diagnosis]
    }

    func run() async throws {
        let findings = await Doctor().examine()
        if json {
            try JSON.print(Report(findings: findings))
        } else {
            let width = findings.map(\.check.count).max() ?? 0
            for finding in findings {
                let check = finding.check.padding(toLength: width, withPad: " ", startingAt: 0)
                let verdict = finding.verdict.rawValue.padding(toLength: 4, withPad: " ", startingAt: 0)
                print("\(verdict)  \(check)  \(finding.found)\(finding.toDo.map { ": \($0)" } ?? "")")
            }
            let counts = [Diagnosis.Verdict.ok, .warn, .fail].map { verdict in
                "\(findings.count { $0.verdict == verdict }) \(verdict.rawValue)"
            }
            print("\(findings.count.counted("check")): \(counts.joined(separator: ", "))")
        }
        if findings.contains(where: { $0.verdict == .fail }) { throw ExitCode(1) }
    }
}
