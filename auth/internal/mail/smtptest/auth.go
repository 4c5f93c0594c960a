package smtptest

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// signIn executes an AUTH command; rest is what follows the verb.
func (c *session) signIn(rest string) error {
	mechanism, initial, _ := strings.Cut(rest, " ")
	var user string
	var ok bool
	var err error
	switch strings.ToUpper(mechanism) {
	case "PLAIN":
		parts := strings.Split(unbase64(initial), "\x00")
		if len(parts) == 3 {
			user, ok = parts[1], parts[1] == c.s.o.User && parts[2] == c.s.o.Pass
		}
	case "LOGIN":
		user, ok, err = c.login()
	case "CRAM-MD5":
		user, ok, err = c.cramMD5()
	case "SCRAM-SHA-256":
		first := unbase64(initial)
		if initial == "" {
			if first, err = c.ask(""); err != nil {
				return err
			}
		}
		user, ok, err = c.scram(first)
	}
	if err != nil {
		return err
	}
	if !ok {
		return c.say("535 5.7.8 wrong")
	}
	c.mail.User = user
	return c.say("235 2.7.0 welcome")
}

func unbase64(s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return ""
	}
	return string(b)
}

// ask sends a challenge and returns the client's response, both without their base64 encoding.
func (c *session) ask(challenge string) (string, error) {
	if err := c.say("334 " + base64.StdEncoding.EncodeToString([]byte(challenge))); err != nil {
		return "", err
	}
	line, err := c.r.ReadString('\n')
	return unbase64(strings.TrimRight(line, "\r\n")), err
}

func (c *session) login() (user string, ok bool, err error) {
	if user, err = c.ask("Username:"); err != nil {
		return "", false, err
	}
	pass, err := c.ask("Password:")
	return user, user == c.s.o.User && pass == c.s.o.Pass, err
}

func (c *session) cramMD5() (user string, ok bool, err error) {
	const challenge = "<1.2@test>"
	response, err := c.ask(challenge)
	user, digest, _ := strings.Cut(response, " ")
	mac := hmac.New(md5.New, []byte(c.s.o.Pass))
	mac.Write([]byte(challenge))
	return user, user == c.s.o.User && digest == hex.EncodeToString(mac.Sum(nil)), err
}

// scram is the server's side of SCRAM-SHA-256 (RFC 7677), without channel binding. first is the client's first message.
func (c *session) scram(first string) (user string, ok bool, err error) {
	bare, found := strings.CutPrefix(first, "n,,")
	name, nonce, found2 := strings.Cut(strings.TrimPrefix(bare, "n="), ",r=")
	if !found || !found2 {
		return "", false, nil
	}
	const salt, rounds = "saltsaltsaltsalt", 4096
	serverFirst := fmt.Sprintf("r=%sserver,s=%s,i=%d", nonce, base64.StdEncoding.EncodeToString([]byte(salt)), rounds)
	final, err := c.ask(serverFirst)
	if err != nil {
		return "", false, err
	}
	withoutProof, proof, _ := strings.Cut(final, ",p=")
	sum := func(key []byte, text string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	salted, err := pbkdf2.Key(sha256.New, c.s.o.Pass, []byte(salt), rounds, 32)
	if err != nil {
		return "", false, err
	}
	message := bare + "," + serverFirst + "," + withoutProof
	clientKey := sum(salted, "Client Key")
	stored := sha256.Sum256(clientKey)
	signature := sum(stored[:], message)
	for i := range signature {
		signature[i] ^= clientKey[i]
	}
	if name != c.s.o.User || proof != base64.StdEncoding.EncodeToString(signature) {
		return "", false, nil
	}
	_, err = c.ask("v=" + base64.StdEncoding.EncodeToString(sum(sum(salted, "Server Key"), message)))
	return name, true, err
}
