package former

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
)

var (
	testSession = uuid.MustParse("00112233-4455-4677-8899-aabbccddeeff")
	testKey     = []byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f")
)

const (
	testKeyText = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
	counter5    = "AAARIjNEVUZ3iJmqu8zd7v8Fa854laJMop1Uxa0l_6SxIqgMW_k"
	counter300  = "AAARIjNEVUZ3iJmqu8zd7v-sAjGrcI6DVpEDY6OmiNkFhtFhWv00"
)

func TestParseToken(t *testing.T) {
	f := func(text string, version int, session uuid.UUID, counter uint64) {
		t.Helper()
		v, ok := ParseToken(text)
		if ok != (version > 0) || v.Version != version && ok || v.Session != session || v.Counter != counter {
			t.Errorf("%q: %+v, %v", text, v, ok)
		}
	}
	none := uuid.Nil
	f("abcdefghijkl", 1, none, 0)
	f("0123456789ab", 1, none, 0)
	f("AAECAwQFBgcICQoLDA0ODw", 1, none, 0)
	f("----------------------", 1, none, 0)
	f(counter5, 2, testSession, 5)
	f(counter300, 2, testSession, 300)
	for _, n := range []uint64{0, 127, 128, 1 << 32, 1<<63 - 1} {
		f(NewVersion2(testSession, n, testKey), 2, testSession, n)
	}
	for _, text := range []string{
		"", "abcdefghijk", "abcdefghijklm", "Abcdefghijkl", "abcdefghijk_", "abcdefghijk\n", "AAECAwQFBgcICQoLDA0OD+",
		"AAECAwQFBgcICQoLDA0ODw=", counter5 + "A", counter5[1:], counter5 + "=", counter5[:50] + "l",
		"AQ" + counter5[2:],
		counter5[:30] + "\n" + counter5[30:], counter5[:len(counter5)-1] + "+", strings.Repeat("A", 76),
		NewVersion2(testSession, 1<<63,
			testKey), // not a bigint
		withBody(append(append([]byte{0}, testSession[:]...), 0x85,
			0)), // not minimal
		withBody(append(append([]byte{0}, testSession[:]...), 5,
			5)), // bytes behind
		withBody(append(append([]byte{0}, testSession[:]...),
			0x85)), // cut
		withBody(append(append([]byte{1}, testSession[:]...),
			5)), // version
		withBody(append(append([]byte{0}, testSession[:]...), 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
			255)), // too large
	} {
		f(text, 0, none, 0)
	}
	// Every character counts: the checksum covers all that is before it.
	for i := range counter300 {
		for _, c := range []byte("A_z0") {
			if bad := counter300[:i] + string(c) + counter300[i+1:]; bad != counter300 {
				f(bad, 0, none, 0)
			}
		}
	}
}

// withBody is a version 2 text with any bytes before its MAC and a right checksum.
func withBody(body []byte) string {
	raw := append(append([]byte(nil), body...), make([]byte, 16)...)
	sum := sha(raw)
	return encoding.EncodeToString(append(raw, sum[:4]...))
}

func TestNewVersion2(t *testing.T) {
	key, ok := SessionKey(testKeyText)
	if !ok || string(key) != string(testKey) {
		t.Fatalf("%x, %v", key, ok)
	}
	if got := NewVersion2(testSession, 5, key); got != counter5 {
		t.Errorf("%s, want %s", got, counter5)
	}
	if got := NewVersion2(testSession, 300, key); got != counter300 {
		t.Errorf("%s, want %s", got, counter300)
	}
	for _, text := range []string{"", testKeyText[1:], testKeyText + "A", testKeyText + "=", testKeyText[:42] + "\n",
		testKeyText + "\n"} {
		if _, ok := SessionKey(text); ok {
			t.Errorf("%q is a key", text)
		}
	}
}

// What users hold depends on these: the derivation never changes.
func TestSecret(t *testing.T) {
	root := secret.NewRoot("root secret for the test of derivation")
	later := secret.NewRoot("another", "root secret for the test of derivation")
	f := func(text, wantSecret, wantHash, wantMAC string) {
		t.Helper()
		v, ok := ParseToken(text)
		if !ok {
			t.Fatal(text)
		}
		s, sum := v.Secret(root), v.SecretHash(root)
		if got := hex.EncodeToString(s[:]); got != wantSecret {
			t.Errorf("%s: secret %s, want %s", text, got, wantSecret)
		}
		if got := hex.EncodeToString(sum[:]); got != wantHash && wantHash != "" {
			t.Errorf("%s: hash %s, want %s", text, got, wantHash)
		}
		if got := hex.EncodeToString(v.MAC(root)); got != wantMAC && wantMAC != "" {
			t.Errorf("%s: MAC %s, want %s", text, got, wantMAC)
		}
		if got, ok := v.SecretOf(later, sum[:]); !ok || got != s {
			t.Errorf("%s: secret %x under a later root key, %v", text, got, ok)
		}
		if got := v.MACs(later); len(got) != 2 || string(got[1]) != string(v.MAC(root)) {
			t.Errorf("%s: MACs %x under a later root key", text, got)
		}
		if _, ok := v.SecretOf(secret.NewRoot("another"), sum[:]); ok {
			t.Errorf("%s: a secret under another root key", text)
		}
		if _, ok := v.SecretOf(root, nil); ok {
			t.Errorf("%s: a secret of nothing", text)
		}
	}
	f("abcdefghijkl", "1082259b6f6730cc131c7f823c270255",
		"ea99bd0b05eb322588317b18954b5033fa9a9231c01feba7bf94215613f96e36",
		"801c72a459802a55c29f03c6e1fa463a2b2e8fb29af9a477c1df7d6972f9bbe3")
	f("AAECAwQFBgcICQoLDA0ODw", "8767a3d9ce9e55c7fb0894d7e0c4289c",
		"44c967bcbd452a3ba79bb1150f982954cc5cab85b501e7535a7f0eeff6a27247",
		"4836d18ebce72df2b4065a3d82bcc9486d195c4efb341e15537461e403f047f2")
	f(counter5, "a2ec5a14ab1fde85a55609a0da12a7a0", "", "")
}

func FuzzParseToken(f *testing.F) {
	for _, text := range []string{"abcdefghijkl", "AAECAwQFBgcICQoLDA0ODw", counter5, counter300, "", "AA"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, ok := ParseToken(text)
		if !ok {
			if v != (Token{}) && v.Version != 1 {
				t.Errorf("%q: %+v", text, v)
			}
			return
		}
		switch v.Version {
		case 1:
			if len(text) != 12 && len(text) != 22 {
				t.Errorf("%q is of version 1", text)
			}
		case 2:
			// Under any key the head is the same.
			again := NewVersion2(v.Session, v.Counter, testKey)
			raw, _ := encoding.DecodeString(text)
			made, _ := encoding.DecodeString(again)
			if len(raw) != len(made) || string(raw[:len(raw)-20]) != string(made[:len(made)-20]) ||
				encoding.EncodeToString(raw) != text {
				t.Errorf("%q was read as %+v, which makes %q", text, v, again)
			}
		default:
			t.Errorf("%q: version %d", text, v.Version)
		}
	})
}
