package import Purchases

/// The limits that a request or a purchase may reach, by the names that answers, metrics and the security log use.
package enum Limit: String, Sendable, CaseIterable {
    /// `rate` of an access key, or of all users of the gateway together.
    case callerRate = "caller.rate"
    case userRate = "user.rate"
    case userReceipts = "user.receiptsPerDay"
    case userBytes = "user.bytesPerDay"
    case userOpen = "user.openReceipts"
    case userOrders = "user.ordersPerDay"
    case userQuestions = "user.questionsPerDay"
    case userInstallations = "user.installationsPerDay"
    case userReports = "user.reportsPerDay"
    /// Lines of one receipt.
    case userLines = "user.lines"
    /// Lists of one user that are read at one time.
    case userLists = "user.lists"
    /// Slow bodies of one user at one time.
    case userBodies = "user.bodies"
    /// Requests of one user that wait at one time (`wait=`); further ones are answered at once with what is known.
    case userWaiters = "user.waiters"
    /// Receipts of one user that one process publishes at once; further ones are stored and wait for their turn.
    case userReceiptsAtOnce = "user.receiptsAtOnce"
    /// Fresh calls to Apple for one user, by one worker in a minute; further calls wait behind those for receipts that
    /// come again.
    case userCalls = "user.callsToApple"
    /// Of the whole process.
    case lists = "process.lists"
    case waiters = "process.waiters"
    case bodies = "process.bodies"
    /// Bytes of one body (`MAKEGOOD_BODY_BYTES_MAX`).
    case bodyBytes = "request.bodyBytes"
    case bodyRate = "request.bodyRate"
    case requestTime = "request.time"
    /// Time that the database may take for one question of a list.
    case listTime = "request.listTime"
    // Connections without a request, which are closed without an answer.
    case silentConnection = "connection.silent"
    case crowdedConnection = "connection.crowded"
    // Workers hold these purchases, ingest does not refuse them: `testers.others` and `makeUp` of an app.
    case userSandbox = "user.sandboxPurchasesPerDay"
    case appSandbox = "app.sandboxPurchasesPerDay"
    case userMakeUps = "user.makeUpsPerDay"
    case customerUsers = "customer.users"
    /// Units of an item of the catalogue. An order beyond is refused; a purchase that is paid is given all the same.
    case userItems = "user.itemLimits"
}

extension Limit {
    package init(_ place: LimitPlace.Limit) {
        self =
            switch place {
            case .sandboxUser: .userSandbox
            case .sandboxApp: .appSandbox
            case .makeUpUser: .userMakeUps
            case .makeUpCustomer: .customerUsers
            case .itemDay, .itemMonth, .itemEver: .userItems
            }
    }
}
