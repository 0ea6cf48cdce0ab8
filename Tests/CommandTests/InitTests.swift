import AppStore
import Crypto
import Foundation
import Settings
import Testing

/// Goal: a stranger gets a configuration for the own app that a service accepts, and a key that nobody else can read;
/// no existing file is lost. Method: the built program in a folder of its own; the test reads the files as a service
/// reads them.
@Suite struct InitTests {
    @Test("the files are read as a service reads them, by their owner alone, and the key is the one that is let in")
    func files() async throws {
        try await withFolder { folder in
            let outcome = try await BuiltProgram.run(
                "init", "--app", "game", "--bundle-id", "com.example.game", "--app-apple-id", "1234567890",
                "--directory", "\(folder)/new")
            #expect(outcome.status == 0)
            let configuration = try Configuration.load("\(folder)/new/makegood.yaml")
            let app = try #require(configuration.apps["game"])
            #expect(app.identity.bundleId == "com.example.game")
            #expect(app.identity.appAppleId == 1_234_567_890)
            #expect(Set(app.identity.environments) == [.production, .sandbox])
            let key = try String(contentsOfFile: "\(folder)/new/backend.key", encoding: .utf8)
                .trimmingCharacters(in: .newlines)
            #expect(key.count == 64)
            let access = try #require(configuration.access.first)
            #expect(
                access.keySHA256 == Array(SHA256.hash(data: Data(key.utf8)))
                    && access.scopes == [.intake, .events, .support] && access.apps == ["game"])
            for name in ["makegood.yaml", "backend.key"] {
                let attributes = try FileManager.default.attributesOfItem(atPath: "\(folder)/new/\(name)")
                #expect(attributes[.posixPermissions] as? Int == 0o600, "\(name)")
            }
            // The next steps name the files, and never show the key.
            #expect(outcome.output.contains("\(folder)/new/makegood.yaml") && !outcome.output.contains(key))
        }
    }

    @Test("without Apple's number the app takes the sandbox alone")
    func sandbox() async throws {
        try await withFolder { folder in
            let outcome = try await BuiltProgram.run(
                "init", "--app", "game", "--bundle-id", "com.example.game", "--directory", folder)
            #expect(outcome.status == 0)
            let configuration = try Configuration.load("\(folder)/makegood.yaml")
            #expect(configuration.apps["game"]?.identity.environments == [.sandbox])
        }
    }

    @Test("a file that is there stays as it is, and a wrong option is named before anything is written")
    func refusals() async throws {
        try await withFolder { folder in
            let kept = try "mine".written(to: folder, as: "backend.key")
            let second = try await BuiltProgram.run(
                "init", "--app", "game", "--bundle-id", "com.example.game", "--directory", folder)
            #expect(second.status == 2 && second.complaint.contains("backend.key is there already"))
            #expect(try String(contentsOfFile: kept, encoding: .utf8) == "mine")
            let wrong = try await BuiltProgram.run(
                "init", "--app", "no spaces", "--bundle-id", "com.example.game", "--directory", "\(folder)/other")
            #expect(wrong.status == 2 && wrong.complaint.contains("apps[0].id"))
            // A link that somebody else has put there is not followed.
            try FileManager.default.createDirectory(atPath: "\(folder)/linked", withIntermediateDirectories: true)
            try FileManager.default.createSymbolicLink(
                atPath: "\(folder)/linked/backend.key", withDestinationPath: "\(folder)/stolen")
            let linked = try await BuiltProgram.run(
                "init", "--app", "game", "--bundle-id", "com.example.game", "--directory", "\(folder)/linked")
            #expect(linked.status == 2)
            #expect(try FileManager.default.contentsOfDirectory(atPath: "\(folder)/linked") == ["backend.key"])
            let lines = try await BuiltProgram.run(
                "init", "--app", "game", "--bundle-id", "x\naccess: []", "--directory", "\(folder)/other")
            #expect(lines.status != 0 && lines.complaint.contains("--bundle-id"))
            #expect(try FileManager.default.contentsOfDirectory(atPath: folder).sorted() == ["backend.key", "linked"])
            let nowhere = try await BuiltProgram.run(
                "init", "--app", "game", "--bundle-id", "com.example.game", "--directory", "\(kept)/under")
            #expect(nowhere.status == 2 && nowhere.complaint.contains("backend.key/under"))
        }
    }
}
