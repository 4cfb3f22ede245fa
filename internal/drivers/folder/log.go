package folder

import (
	"errors"
	"io"
	"os"
	"strings"
)

// OldSuffix ends the name of a file that has the end of a trimmed log.
const OldSuffix = ".old"

// Trim empties a log that has more than most bytes, and keeps its last bytes in <path>.old. The writer appends, and so continues
// at the beginning.
func Trim(path string, most, kept int64) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= most {
		return err
	}
	text, err := end(path, kept)
	if err == nil {
		err = os.WriteFile(path+OldSuffix, text, 0o600)
	}
	// Emptied in any case: on a full disk this is what frees room.
	return errors.Join(err, os.Truncate(path, 0))
}

// LastLine returns the last line of a log that is not empty, of at most 4 KiB; "" where there is none.
func LastLine(path string) string {
	text, _ := end(path, 4<<10)
	last := strings.TrimSpace(string(text))
	return strings.ToValidUTF8(strings.TrimSpace(last[strings.LastIndexByte(last, '\n')+1:]), "?")
}

// end returns the last bytes of a file of any size.
func end(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-most), most))
}
