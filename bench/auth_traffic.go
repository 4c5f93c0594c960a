//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"
)

// account is a user with a password and one session.
type account struct{ email, access, refresh string }

// authConns is how many connections the scenarios use, each with one request in flight.
const authConns = 16

// clientHeaders are the headers that the client library sends with every request.
const clientHeaders = "User-Agent: gatehouse-bench\r\nX-Client-Info: gotrue-js/2.0.0\r\n" +
	"X-Supabase-Api-Version: 2024-01-01\r\n"

// appendRequest writes one request. The Host does not matter: the daemon's links come from its settings.
func appendRequest(b []byte, method, path, bearer string, body []byte) []byte {
	b = fmt.Appendf(b, "%s %s HTTP/1.1\r\nHost: bench.example\r\n%s", method, path, clientHeaders)
	if bearer != "" {
		b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", bearer)
	}
	if method != "GET" {
		b = fmt.Appendf(b, "Content-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\n", len(body))
	}
	return append(append(b, "\r\n"...), body...)
}

// getting requests one path repeatedly.
func getting(path string) httpTraffic {
	request := appendRequest(nil, "GET", path, "", nil)
	return httpTraffic{
		next:  func(b []byte, _ int) ([]byte, bool) { return append(b, request...), true },
		judge: answered(200),
	}
}

// byAccounts makes requests of one account after the other, over the given number of connections: each connection goes
// through accounts of its own, so that no account is used twice at once. With once each account makes only one request.
func byAccounts(conns int, accounts []account, once bool, request func(b []byte, conn int, a *account) []byte,
	judge func(conn, status int, body []byte) bool) httpTraffic {
	var gone [256]int // each connection's position; there are more than connections of any load
	return httpTraffic{judge: judge, next: func(b []byte, conn int) ([]byte, bool) {
		i := conn + gone[conn]
		if i >= len(accounts) {
			if once || conn >= len(accounts) {
				return nil, false
			}
			i = conn
		}
		gone[conn] = i + conns - conn
		return request(b, conn, &accounts[i]), true
	}}
}

// requests returns the traffic of a scenario for the accounts of a crowd. kept gets the accounts that sign up, whose
// addresses begin with prefix. A scenario without a name is a path to GET.
func requests(scenario string, conns int, crowd []account, prefix string, kept *[]account) httpTraffic {
	switch scenario {
	case "user":
		return asUser(crowd)
	case "refresh":
		return refreshing(crowd)
	case "password":
		return signingIn(conns, crowd)
	case "signup":
		return signingUp(prefix, kept)
	}
	return getting(scenario)
}

// asUser requests GET /user for one account after the other.
func asUser(accounts []account) httpTraffic {
	mail := []byte(`"email":"`)
	return byAccounts(authConns, accounts, false, func(b []byte, _ int, a *account) []byte {
		return appendRequest(b, "GET", "/user", a.access, nil)
	}, func(_, status int, body []byte) bool { return status == 200 && bytes.Contains(body, mail) })
}

// refreshing exchanges each account's refresh token for a new one, and keeps it.
func refreshing(accounts []account) httpTraffic {
	return keeping(accounts, false, "/token?grant_type=refresh_token", func(b []byte, a *account) []byte {
		return append(append(append(b, `{"refresh_token":"`...), a.refresh...), `"}`...)
	})
}

// keeping requests tokens for one account after the other, with once only once, and keeps these. The refresh token must
// be a new one.
func keeping(accounts []account, once bool, path string, appendBody func([]byte, *account) []byte) httpTraffic {
	current := make([]*account, authConns)
	var body []byte
	return byAccounts(authConns, accounts, once, func(b []byte, conn int, a *account) []byte {
		current[conn] = a
		body = appendBody(body[:0], a)
		return appendRequest(b, "POST", path, "", body)
	}, func(conn, status int, answer []byte) bool {
		a := current[conn]
		before := a.refresh
		return status == 200 && a.take(answer) && a.refresh != before
	})
}

// take keeps the tokens of an answer.
func (a *account) take(answer []byte) bool {
	a.access, a.refresh = field(answer, "access_token"), field(answer, "refresh_token")
	return a.access != "" && a.refresh != ""
}

// field finds a string of a JSON object whose name occurs once; "" if there is none. Tokens need no unescaping.
func field(answer []byte, name string) string {
	_, rest, ok := bytes.Cut(answer, []byte(`"`+name+`":"`))
	value, _, closed := bytes.Cut(rest, []byte(`"`))
	if !ok || !closed {
		return ""
	}
	return string(value)
}

// signingIn signs accounts in with their passwords, over conns connections.
func signingIn(conns int, accounts []account) httpTraffic {
	return byAccounts(conns, accounts, false, func(b []byte, _ int, a *account) []byte {
		return appendRequest(b, "POST", passwordPath, "", appendSignIn(nil, a))
	}, answered(200))
}

const passwordPath = "/token?grant_type=password"

func appendSignIn(b []byte, a *account) []byte {
	return fmt.Appendf(b, `{"email":%q,"password":%q,"gotrue_meta_security":{}}`, a.email, benchPassword)
}

// answered judges by the status only.
func answered(want int) func(conn, status int, body []byte) bool {
	return func(_, status int, _ []byte) bool { return status == want }
}

// signingUp makes new accounts, which kept gets; their addresses begin with prefix.
func signingUp(prefix string, kept *[]account) httpTraffic {
	n := 0
	pending := make([]string, authConns)
	return httpTraffic{
		next: func(b []byte, conn int) ([]byte, bool) {
			n++
			pending[conn] = fmt.Sprintf("%s-%07d@bench.example", prefix, n)
			body := fmt.Appendf(nil, `{"email":%q,"password":%q,"data":{},"gotrue_meta_security":{},"code_challenge":null,"code_challenge_method":null}`,
				pending[conn], benchPassword)
			return appendRequest(b, "POST", "/signup", "", body), true
		},
		judge: func(conn, status int, answer []byte) bool {
			a := account{email: pending[conn]}
			if status != 200 || !a.take(answer) {
				return false
			}
			*kept = append(*kept, a)
			return true
		},
	}
}

// signingOut ends each account's session, once.
func signingOut(conns int, accounts []account) httpTraffic {
	return byAccounts(conns, accounts, true, func(b []byte, _ int, a *account) []byte {
		return appendRequest(b, "POST", "/logout", a.access, nil)
	}, answered(204))
}

// signUpAccounts signs up n accounts and shuffles them, so that neighbours in the table are not read one after the
// other.
func signUpAccounts(t *target, prefix string, n int) ([]account, error) {
	if n == 0 {
		return nil, nil
	}
	var accounts []account
	l := load{addr: t.addr, traffic: signingUp(prefix, &accounts), conns: authConns, run: 5 * time.Minute, calls: n}
	if _, err := l.driveClean(); err != nil {
		return nil, fmt.Errorf("%s: sign up %d accounts: %w", t.name, n, err)
	}
	rand.Shuffle(len(accounts), func(i, j int) { accounts[i], accounts[j] = accounts[j], accounts[i] })
	return accounts, nil
}
