import AppStore
import Foundation
import Testing

@testable import Settings

/// Goal: a bundle id belongs to one app of the file. Method: files of one or two apps, each with one mistake.
@Suite struct BundleIDTests {
    private func parse(_ yaml: String) throws(ConfigurationError) -> Configuration {
        try Configuration.parse(yaml, directory: FileManager.default.temporaryDirectory)
    }

    private func refusedKey(_ yaml: String) -> String? {
        do throws(ConfigurationError) {
            _ = try parse(yaml)
            return nil
        } catch {
            return error.key
        }
    }

    @Test("F22: other bundle ids of an app are its own, no other app's, and change its hash")
    func bundleIDAliases() throws {
        func app(_ id: String, _ bundleID: String, _ aliases: String = "") -> String {
            "{id: \(id), bundleId: \(bundleID), environments: [Sandbox]\(aliases.isEmpty ? "" : ", bundleIdAliases: \(aliases)")}"
        }
        func yaml(_ apps: String...) -> String { "apps:\n" + apps.map { "  - \($0)\n" }.joined() }
        let plain = try #require(try parse(yaml(app("a", "b.c"))).apps["a"])
        let both = try #require(try parse(yaml(app("a", "b.c", "[maccatalyst.b.c, b.c.Clip]"))).apps["a"])
        #expect(plain.identity.bundleIdAliases == [] && plain.hash != both.hash)
        #expect(both.identity.bundleIdAliases == ["maccatalyst.b.c", "b.c.Clip"])
        for (file, key) in [
            (yaml(app("a", "b.c", "[b.c]")), "apps[0].bundleIdAliases"),
            (yaml(app("a", "b.c", "[b.d, b.d]")), "apps[0].bundleIdAliases"),
            (yaml(app("a", "b.c", "['b d']")), "apps[0].bundleIdAliases"),
            (yaml(app("a", "b.c"), app("d", "b.d", "[b.c]")), "apps[1].bundleIdAliases"),
            (yaml(app("a", "b.c", "[b.e]"), app("d", "b.d", "[b.e]")), "apps[1].bundleIdAliases"),
            (yaml(app("a", "b.c", "[b.d]"), app("d", "b.d")), "apps[1].bundleId"),
        ] {
            #expect(refusedKey(file) == key, "\(file)")
        }
    }
}
