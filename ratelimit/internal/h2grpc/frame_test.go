package h2grpc

import (
	"bytes"
	"reflect"
	"testing"

	"golang.org/x/net/http2"

	"gatehouse/shared/must"
)

// TestFrames_written: x/net's Framer writes and reads the same bytes.
func TestFrames_written(t *testing.T) {
	f := func(name string, ours []byte, theirs func(*http2.Framer) error) {
		t.Helper()
		var b bytes.Buffer
		must.Succeed(t, theirs(http2.NewFramer(&b, nil)))
		if !bytes.Equal(ours, b.Bytes()) {
			t.Errorf("%s: %x, want %x", name, ours, b.Bytes())
		}
		if _, err := http2.NewFramer(nil, bytes.NewReader(ours)).ReadFrame(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ping := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	f("RST_STREAM", appendReset(nil, 3, http2.ErrCodeRefusedStream), func(f *http2.Framer) error {
		return f.WriteRSTStream(3, http2.ErrCodeRefusedStream)
	})
	f("WINDOW_UPDATE", appendWindowUpdate(nil, 7, 65000), func(f *http2.Framer) error {
		return f.WriteWindowUpdate(7, 65000)
	})
	f("WINDOW_UPDATE of the connection", appendWindowUpdate(nil, 0, maxWindow), func(f *http2.Framer) error {
		return f.WriteWindowUpdate(0, maxWindow)
	})
	f("PING", appendPing(nil, 0, ping[:]), func(f *http2.Framer) error { return f.WritePing(false, ping) })
	f("PING ack", appendPing(nil, http2.FlagPingAck, ping[:]), func(f *http2.Framer) error {
		return f.WritePing(true, ping)
	})
	f("GOAWAY", appendGoAway(nil, maxWindow, http2.ErrCodeEnhanceYourCalm, "why"), func(f *http2.Framer) error {
		return f.WriteGoAway(maxWindow, http2.ErrCodeEnhanceYourCalm, []byte("why"))
	})
	f("SETTINGS", appendSettings(nil, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1024},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}), func(f *http2.Framer) error {
		return f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1024},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow})
	})
	f("SETTINGS without any", appendSettings(nil), func(f *http2.Framer) error { return f.WriteSettings() })
	data := appendFrameHeader(nil, 3, http2.FrameData, http2.FlagDataEndStream, 9)
	f("DATA", append(data, "abc"...), func(f *http2.Framer) error { return f.WriteData(9, true, []byte("abc")) })
}

func TestParseFrameHeader(t *testing.T) {
	for _, b := range [][]byte{
		make([]byte, 9), {0, 0, 5, 0, 9, 0, 0, 0, 1}, {255, 255, 255, 255, 255, 255, 255, 255, 255},
		{0, 64, 0, 1, 0x25, 0x80, 0, 0, 3},
	} {
		want, err := http2.ReadFrameHeader(bytes.NewReader(b))
		must.Succeed(t, err)
		got := parseFrameHeader(b)
		if got.length != int(want.Length) || got.kind != want.Type || got.flags != want.Flags ||
			got.stream != want.StreamID {
			t.Errorf("%x: %+v, want %v", b, got, want)
		}
	}
}

// TestUnpad: as x/net's Framer takes padding off DATA.
func TestUnpad(t *testing.T) {
	for _, payload := range []string{"", "\x00", "\x01", "\x00abc", "\x02abc", "\x03abc", "\x04abc", "\xffabc", "abc"} {
		for _, flags := range []http2.Flags{0, http2.FlagDataPadded, http2.FlagDataPadded | http2.FlagDataEndStream} {
			h := frameHeader{length: len(payload), kind: http2.FrameData, flags: flags, stream: 1}
			got, ok := unpad(h, []byte(payload))
			frame, err := http2.NewFramer(nil,
				bytes.NewReader(append(appendFrameHeader(nil, h.length, h.kind, h.flags, h.stream),
					payload...))).ReadFrame()
			if ok != (err == nil) {
				t.Errorf("%q, flags %x: %v, want %v", payload, flags, ok, err)
				continue
			}
			if ok && !bytes.Equal(got, frame.(*http2.DataFrame).Data()) {
				t.Errorf("%q, flags %x: %q, want %q", payload, flags, got, frame.(*http2.DataFrame).Data())
			}
		}
	}
}

// TestReasons: each reason has its counter.
func TestReasons(t *testing.T) {
	seen := map[reason]bool{}
	for _, r := range reasons {
		if seen[r] || r == "" {
			t.Errorf("%q twice", r)
		}
		seen[r] = true
	}
	if !reflect.DeepEqual(len(seen), len(reasons)) {
		t.Error(seen)
	}
}
