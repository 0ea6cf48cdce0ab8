// Receives Makegood's webhooks, and hands goods out in one transaction with the note that it did. Go 1.18 and newer, with
// PostgreSQL and github.com/lib/pq as its store.
//
//	RECEIVER_SECRETS=secrets.txt RECEIVER_DATABASE=postgresql:///game RECEIVER_PORT=8088 go run .
//
// RECEIVER_SECRETS is a file with a secret (whsec_…) a line: one, or two while a secret is changed. Each request reads the
// file anew. Put your own tables beside webhook_events and webhook_cursors, and your own work in the place of handOut.
// The receiver listens on 127.0.0.1, or on RECEIVER_HOST: TLS ends at your gateway.
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	_ "github.com/lib/pq"
)

const (
	toleranceSeconds = 300
	bodyBytesMax     = 1 << 20
	databaseWait     = 3 * time.Second // less than the endpoint's time limit, so that Makegood reads the 500
	tables           = `
		create table if not exists webhook_events (id uuid primary key, user_id text, at timestamptz not null);
		create table if not exists webhook_cursors (endpoint text primary key, place bigint not null, number bigint not null);
		create table if not exists goods (user_id text, item text, amount bigint not null, primary key (user_id, item))`
)

var signs = map[string]int64{
	"purchase.granted": 1, "purchase.reinstated": 1, "order.paid": 1, "purchase.revoked": -1,
}

type event struct {
	ID     string  `json:"id"`
	Type   string  `json:"type"`
	UserID *string `json:"userId"`
	At     string  `json:"at"`
	Data   *struct {
		TakeBack *bool `json:"takeBack"`
		Goods    []struct {
			Item   string `json:"item"`
			Amount int64  `json:"amount"`
		} `json:"goods"`
	} `json:"data"`
	Delivery struct {
		Endpoint   string  `json:"endpoint"`
		Cursor     string  `json:"cursor"`
		PreviousID *string `json:"previousId"`
	} `json:"delivery"`
}

// The request is answered with this status, and nothing of it is kept.
type refused struct {
	status int
	why    string
}

func (r refused) Error() string { return r.why }

// The secrets of the file, decoded.
func readSecrets(path string) ([][]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var secrets [][]byte
	for _, line := range strings.Fields(string(text)) {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(line, "whsec_"))
		if err != nil || !strings.HasPrefix(line, "whsec_") || len(secret) < 24 || len(secret) > 64 {
			return nil, fmt.Errorf("%s: each line must be whsec_ and the base64 of 24 to 64 bytes", path)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%s: there is no secret", path)
	}
	return secrets, nil
}

var stamps = regexp.MustCompile(`^[0-9]{1,12}$`)

// Standard Webhooks: one of the signatures is by one of the secrets, over exactly these bytes, and was made just now.
func verify(headers http.Header, body []byte, secrets [][]byte, now int64) (string, error) {
	id, stamp := headers.Get("webhook-id"), headers.Get("webhook-timestamp")
	if id == "" || !stamps.MatchString(stamp) {
		return "", refused{401, "webhook-id or webhook-timestamp is missing"}
	}
	made, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now-made > toleranceSeconds || made-now > toleranceSeconds {
		return "", refused{401, "webhook-timestamp is more than five minutes from this clock"}
	}
	isOurs := false
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%s.", id, stamp)
		mac.Write(body)
		known := mac.Sum(nil)
		for _, text := range strings.Split(headers.Get("webhook-signature"), " ") {
			given, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "v1,"))
			// Each pair is compared, in constant time.
			if strings.HasPrefix(text, "v1,") && err == nil && hmac.Equal(given, known) {
				isOurs = true
			}
		}
	}
	if !isOurs {
		return "", refused{401, "no signature is by a secret of ours"}
	}
	return id, nil
}

// What this backend does for an event; here: it keeps an account of each user's goods.
func handOut(ctx context.Context, tx *sql.Tx, e event) error {
	sign := signs[e.Type]
	if sign == 0 || (e.Data.TakeBack != nil && !*e.Data.TakeBack) {
		return nil
	}
	for _, goods := range e.Data.Goods {
		_, err := tx.ExecContext(ctx, `
			insert into goods values ($1, $2, $3)
			on conflict (user_id, item) do update set amount = goods.amount + excluded.amount`,
			e.UserID, goods.Item, sign*goods.Amount)
		if err != nil {
			return err
		}
	}
	return nil
}

// Notes the event, hands it out and remembers the cursor, all or nothing. False: it was taken before.
func take(ctx context.Context, db *sql.DB, e event) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // after a commit it does nothing
	noted, err := tx.ExecContext(ctx,
		"insert into webhook_events values ($1, $2, $3) on conflict do nothing", e.ID, e.UserID, e.At)
	if err != nil {
		return false, err
	}
	count, err := noted.RowsAffected()
	if err != nil {
		return false, err
	}
	if count == 1 {
		if previous := e.Delivery.PreviousID; previous != nil {
			var isKnown bool
			err := tx.QueryRowContext(ctx, "select exists (select from webhook_events where id = $1)", *previous).Scan(&isKnown)
			if err != nil {
				return false, err
			}
			if !isKnown {
				log.Printf("event %s: the user's event before it, %s, is unknown here; if it does not come, read the feed",
					e.ID, *previous)
			}
		}
		if err := handOut(ctx, tx, e); err != nil {
			return false, err
		}
	}
	place, number, _ := strings.Cut(e.Delivery.Cursor, "-")
	_, err = tx.ExecContext(ctx, `
		insert into webhook_cursors select $1::text, $2::bigint, $3::bigint where not exists (
			select from webhook_cursors where endpoint = $1::text and (place, number) >= ($2::bigint, $3::bigint))
		on conflict (endpoint) do update set place = excluded.place, number = excluded.number
		where (excluded.place, excluded.number) > (webhook_cursors.place, webhook_cursors.number)`,
		e.Delivery.Endpoint, place, number)
	if err != nil {
		return false, err
	}
	return count == 1, tx.Commit()
}

var cursors = regexp.MustCompile(`^[0-9]{1,18}-[0-9]{1,18}$`)

func receive(db *sql.DB, w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return refused{405, "the method is not POST"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	if err != nil {
		return refused{413, "the body is too large, or did not arrive"}
	}
	secrets, err := readSecrets(os.Getenv("RECEIVER_SECRETS"))
	if err != nil {
		return err
	}
	id, err := verify(r.Header, body, secrets, time.Now().Unix())
	if err != nil {
		return err
	}
	var e event
	if json.Unmarshal(body, &e) != nil || e.ID != id || e.Data == nil || !cursors.MatchString(e.Delivery.Cursor) {
		return refused{400, "the body is no event, or another one than webhook-id names"}
	}
	isNew, err := take(r.Context(), db, e)
	if err == nil {
		log.Printf("%s %s, new: %t", e.Type, e.ID, isNew)
	}
	return err
}

func main() {
	if _, err := readSecrets(os.Getenv("RECEIVER_SECRETS")); err != nil {
		log.Fatal("receiver: RECEIVER_SECRETS: ", err)
	}
	db, err := sql.Open("postgres", os.Getenv("RECEIVER_DATABASE"))
	if err != nil {
		log.Fatal("receiver: RECEIVER_DATABASE: ", err)
	}
	db.SetMaxOpenConns(16)
	if _, err := db.Exec(tables); err != nil {
		log.Fatal("receiver: RECEIVER_DATABASE: ", err)
	}
	host, port := os.Getenv("RECEIVER_HOST"), os.Getenv("RECEIVER_PORT")
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "8088"
	}
	server := &http.Server{
		Addr: net.JoinHostPort(host, port), ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := receive(db, w, r)
			var no refused
			switch {
			case err == nil:
				w.WriteHeader(http.StatusNoContent)
			case errors.As(err, &no):
				log.Printf("refused with %d: %s", no.status, no.why)
				w.WriteHeader(no.status)
			default: // the database, the secrets: Makegood comes again
				log.Print("failed: ", err)
				w.WriteHeader(http.StatusInternalServerError)
			}
		}),
	}
	log.Fatal(server.ListenAndServe())
}
