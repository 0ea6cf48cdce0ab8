/// A file that a setting names, and what follows if somebody else on the machine may touch it.
package struct NamedFile: Sendable, Equatable {
    /// `MAKEGOOD_CONFIG`, or `apps[0].serverApi.privateKeyFile`.
    package let key: String
    package let path: String
    /// Whether the file holds a password or a key, so that everybody who reads the file has it.
    package let holdsSecret: Bool

    package init(key: String, path: String, holdsSecret: Bool) {
        self.key = key
        self.path = path
        self.holdsSecret = holdsSecret
    }
}
