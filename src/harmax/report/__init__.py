"""The report: one HTML file, or a folder of small pages, made from run folders alone."""

from harmax.report.html import Report, write_report
from harmax.report.results import write_results

__all__ = ["Report", "write_report", "write_results"]
