import ArgumentParser
import Commands
import Crypto
import Encoding
import Foundation
import Glibc
import Settings

/// `makegood init`: the first configuration of one's own app, and a key for its backend.
struct InitCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "init",
        abstract: "Write a configuration for an app and a key for its backend, and say what comes next.",
        discussion: """
            Writes makegood.yaml and backend.key into a folder, both readable by their owner alone. Replaces no file. The \
            configuration holds the hash of the key; no process of Makegood needs the key itself. The key may post \
            receipts, read events, and read timelines for support. deploy/configuration.md describes every other \
            setting, such as products and Apple's credentials. Exit code: 0; 2 if nothing was written.
            """)

    @Option(help: ArgumentHelp("The app's id in Makegood: at most 64 of A-Z a-z 0-9 . _ -", valueName: "id"))
    var app: String

    @Option(help: ArgumentHelp("The app's bundle id at Apple.", valueName: "id"))
    var bundleId: String

    @Option(
        help: ArgumentHelp(
            "Apple's number of the app. Without it the configuration takes purchases of the sandbox alone.",
            valueName: "number"))
    var appAppleId: Int64?

    @Option(help: ArgumentHelp("Where the files go; made if it is not there.", valueName: "folder"))
    var directory = "."

    func validate() throws {
        // It stands in the file as it is, in a comment too: a line break would begin a line of its own.
        guard bundleId.wholeMatch(of: /[A-Za-z0-9._-]+/) != nil else {
            throw ValidationError("--bundle-id must be of A-Z a-z 0-9 . _ -")
        }
    }

    func run() throws {
        let folder = URL(filePath: directory, directoryHint: .isDirectory)
        let (file, keyFile) = (folder.appending(path: "makegood.yaml"), folder.appending(path: "backend.key"))
        let key = SymmetricKey(size: .bits256).withUnsafeBytes { Array($0).hexadecimal }
        let yaml = yaml(keySHA256: SHA256.hash(data: Data(key.utf8)).hexadecimal)
        do {
            // As a service would read it: a wrong option is named before anything is written.
            _ = try Configuration.parse(yaml, directory: folder)
            try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
            try Self.write(yaml, to: file)
            do {
                try Self.write(key + "\n", to: keyFile)
            } catch {
                // A configuration whose key nobody has is of no use.
                try? FileManager.default.removeItem(at: file)
                throw error
            }
        } catch {
            let problem = (error as? CocoaError).map { "\(folder.path): \($0.localizedDescription)" } ?? "\(error)"
            Terminal.tell("makegood init: \(problem)")
            throw ExitCode.unusableInput
        }
        Terminal.show(nextSteps(file.path, keyFile.path))
    }

    private func yaml(keySHA256: String) -> String {
        let isForProduction = appAppleId != nil
        return """
            # Written by makegood init. deploy/configuration.md describes every setting.
            apps:
              - id: "\(app)"
                bundleId: "\(bundleId)"
            \(appAppleId.map { "    appAppleId: \($0)\n" } ?? "")    environments: \
            [\(isForProduction ? "Production, Sandbox" : "Sandbox")]
                # Sandbox purchases cost nothing: Makegood grants them to these users alone.
                sandboxPurchases: testers
                testers: {users: []}
                # What each product gives. A purchase of a product that is not listed is held until it is.
                products: []
                # - {id: \(bundleId).coins, type: consumable, goods: [{item: coins, amount: 100}]}
                # - {id: \(bundleId).pass, type: autoRenewable, group: pass, level: 1, goods: []}
                # - {id: \(bundleId).season, type: nonRenewing, duration: P90D, goods: []}
                # Lets Makegood ask Apple, from App Store Connect: Users and Access, Integrations, In-App Purchase.
                # serverApi: {issuerId: …, keyId: …, privateKeyFile: SubscriptionKey.p8}
            access:
              - {name: backend, keySha256: \(keySHA256), scopes: [intake, events, support], apps: ["\(app)"]}

            """
    }

    /// What an operator does next, with the names of the files that were written.
    private func nextSteps(_ file: String, _ keyFile: String) -> String {
        """
        wrote \(file) and \(keyFile)

        1. Name your products in \(file), and the sandbox's testers.
        2. createdb makegood
        3. export MAKEGOOD_CONFIG=\(file)
           export MAKEGOOD_POSTGRES_URL=postgresql:///makegood MAKEGOOD_AMQP_URL=amqp://localhost
        4. makegood migrate && makegood doctor
        5. makegood all
        6. curl -s 'http://127.0.0.1:8080/v1/receipts?wait=20' -H "Authorization: Bearer $(cat \(keyFile))" \\
             -H 'Content-Type: application/json' -d '{"userId": "u1", "signedTransaction": "…"}'

        For production: makegood roles gives each service a database user of its own, and deploy/operating.md says more.
        """
    }

    /// Makes a file that its owner alone may read. Fails where a file or a link is there already, also one that another
    /// user has made at this moment.
    private static func write(_ text: String, to file: URL) throws(UnusableInput) {
        let descriptor = open(file.path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
        guard descriptor >= 0 else {
            throw errno == EEXIST
                ? UnusableInput("\(file.path) is there already; name another --directory")
                : UnusableInput("\(file.path) cannot be written: \(String(cString: strerror(errno)))")
        }
        let handle = FileHandle(fileDescriptor: descriptor, closeOnDealloc: true)
        do {
            try handle.write(contentsOf: Data(text.utf8))
        } catch {
            try? FileManager.default.removeItem(at: file)
            throw UnusableInput("\(file.path) cannot be written: the disk may be full")
        }
    }
}
