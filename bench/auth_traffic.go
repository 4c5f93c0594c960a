//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"
)

// account is a user with a password and the tokens of one session.
type account struct{ email, access, refresh string }

// authConns is the number of connections that a scenario uses, each with one request in flight.
const authConns = 16

// clientHeaders are the headers that the client library auth-js sends with each request.
const clientHeaders = "User-Agent: gatehouse-bench\r\nX-Client-Info: gotrue-js/2.0.0\r\n" +
	"X-Supabase-Api-Version: 2024-01-01\r\n"

// appendRequest appends an HTTP request to b. Its Host header is always the same, since the daemon takes the host of
// links from its settings.
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

// getting returns traffic that requests one path again and again.
func getting(path string) httpTraffic {
	request := appendRequest(nil, "GET", path, "", nil)
	return httpTraffic{
		next:  func(b []byte, _ int) ([]byte, bool) { return append(b, request...), true },
		judge: answered(200),
	}
}

// byAccounts returns traffic that makes a request for one account after the other. Each of the conns connections has
// accounts of its own, so that no account is used by two requests at the same time. If once is set, each account makes
// only one request.
func byAccounts(conns int, accounts []account, once bool, request func(b []byte, conn int, a *account) []byte,
	judge func(conn, status int, body []byte) bool) httpTraffic {
	var gone [256]int // for each connection, how far it has got; no load has more connections
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

// requests returns the traffic of a scenario, made by the accounts in crowd. In the scenario signup, new accounts are
// added to the list kept; their addresses begin with prefix. Any text that names no scenario is taken as a path, and
// the traffic is GET requests for it.
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

// asUser returns traffic that requests GET /user for one account after the other.
func asUser(accounts []account) httpTraffic {
	mail := []byte(`"email":"`)
	return byAccounts(authConns, accounts, false, func(b []byte, _ int, a *account) []byte {
		return appendRequest(b, "GET", "/user", a.access, nil)
	}, func(_, status int, body []byte) bool { return status == 200 && bytes.Contains(body, mail) })
}

// refreshing returns traffic that exchanges the refresh token of one account after the other for a new one.
func refreshing(accounts []account) httpTraffic {
	return keeping(accounts, false, "/token?grant_type=refresh_token", func(b []byte, a *account) []byte {
		return append(append(append(b, `{"refresh_token":"`...), a.refresh...), `"}`...)
	})
}

// keeping returns traffic that requests new tokens for one account after the other, and keeps them in the account. If
// once is set, each account makes only one request. An answer with the previous refresh token counts as failed.
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

// take stores the tokens in an answer in the account, and reports whether the answer has both.
func (a *account) take(answer []byte) bool {
	a.access, a.refresh = field(answer, "access_token"), field(answer, "refresh_token")
	return a.access != "" && a.refresh != ""
}

// field returns the value of a member of a JSON object. The value must be a string without escapes, as tokens are, and
// the name must occur only once in the answer. If there is no such member, field returns "".
func field(answer []byte, name string) string {
	_, rest, ok := bytes.Cut(answer, []byte(`"`+name+`":"`))
	value, _, closed := bytes.Cut(rest, []byte(`"`))
	if !ok || !closed {
		return ""
	}
	return string(value)
}

// signingIn returns traffic that signs accounts in with their passwords, over conns connections.
func signingIn(conns int, accounts []account) httpTraffic {
	return byAccounts(conns, accounts, false, func(b []byte, _ int, a *account) []byte {
		return appendRequest(b, "POST", passwordPath, "", appendSignIn(nil, a))
	}, answered(200))
}

const passwordPath = "/token?grant_type=password"

func appendSignIn(b []byte, a *account) []byte {
	return fmt.Appendf(b, `{"email":%q,"password":%q,"gotrue_meta_security":{}}`, a.email, benchPassword)
}

// answered returns a judge that accepts every answer with the given status.
func answered(want int) func(conn, status int, body []byte) bool {
	return func(_, status int, _ []byte) bool { return status == want }
}

// signingUp returns traffic that signs up new accounts and adds them to kept. Their addresses begin with prefix.
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

// signingOut returns traffic that ends the session of each account, once, over conns connections.
func signingOut(conns int, accounts []account) httpTraffic {
	return byAccounts(conns, accounts, true, func(b []byte, _ int, a *account) []byte {
		return appendRequest(b, "POST", "/logout", a.access, nil)
	}, answered(204))
}

// signUpAccounts signs up n accounts and returns them in random order, so that accounts that are next to each other in
// the table are not read one after the other.
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
